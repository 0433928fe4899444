"""Weights from safetensors, checked tensor by tensor against the model's shape before any is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine.config import ModelConfig
from shared.engine.kv_pool import TORCH_DTYPES
from shared.engine.layers import DenseMlp, LayerWeights, ModelWeights
from shared.engine.linear import DenseLinear
from shared.errors import InvalidRequest, NotFound

READABLE_DTYPES = ("F32", "BF16", "F16")
MAX_INDEX_BYTES = 64 << 20
MAX_NAMES_IN_ERROR = 3


LoadProgress = Callable[[int, int], None]
"""(layers loaded, layers in all)"""


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a Llama checkpoint of this shape must hold."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        attention = {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query)}
        mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        linears = [
            (f"self_attn.{name}_proj", shape, config.output_bias if name == "o" else config.qkv_bias)
            for name, shape in attention.items()
        ]
        linears += [(f"mlp.{name}_proj", shape, config.mlp_bias) for name, shape in mlp.items()]
        for name, shape, has_bias in linears:
            shapes[f"{prefix}{name}.weight"] = shape
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    return shapes


def load_weights(
    model_dir: str | Path,
    config: ModelConfig,
    device: torch.device,
    on_loaded: LoadProgress | None = None,
) -> ModelWeights:
    """Read model.safetensors, or the shards that model.safetensors.index.json names.

    Raises NotFound for missing files, InvalidRequest for missing, unknown, misshapen or non-float tensors
    and for damaged files. Tensors are cast to the config's dtype. `on_loaded` follows each layer.
    """
    folder = Path(model_dir)
    with ExitStack() as stack:
        readers: dict[str, Any] = {}
        for path in _weight_files(folder):
            try:
                reader = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise InvalidRequest(f"{path.name} is damaged ({error}); download the model again") from error
            readers.update(dict.fromkeys(reader.keys(), reader))
        _check_tensors(readers, config)
        return _Assembler(readers, config, device).assemble(on_loaded)


def _weight_files(folder: Path) -> Iterator[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        yield single
        return
    if not index.is_file():
        raise NotFound(
            f"{str(folder)!r} has neither model.safetensors nor model.safetensors.index.json; "
            "only safetensors checkpoints are read"
        )
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise InvalidRequest(f"{index.name} is larger than {MAX_INDEX_BYTES} bytes; download the model again")
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{index.name} has no usable weight_map; download the model again") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidRequest(f"{index.name} names {name!r}, which is not a file beside it")
        if not (folder / name).is_file():
            raise NotFound(f"{name} is named by {index.name} but missing; download the model again")
        yield folder / name


def _check_tensors(readers: dict[str, Any], config: ModelConfig) -> None:
    expected = expected_tensors(config)
    missing = sorted(expected.keys() - readers.keys())
    if missing:
        raise InvalidRequest(
            f"checkpoint lacks {_some(missing)}; config.json and weights do not belong together"
        )
    unknown = sorted(name for name in readers.keys() - expected.keys() if not _may_ignore(name, config))
    if unknown:
        raise InvalidRequest(
            f"checkpoint holds {_some(unknown)}, which a {config.architecture} does not have"
        )
    for name, shape in expected.items():
        view = readers[name].get_slice(name)
        if tuple(view.get_shape()) != shape:
            raise InvalidRequest(
                f"tensor {name} has shape {tuple(view.get_shape())}, config.json says {shape}; "
                "config.json and weights do not belong together"
            )
        if view.get_dtype() not in READABLE_DTYPES:
            raise InvalidRequest(
                f"tensor {name} is {view.get_dtype()}; only {', '.join(READABLE_DTYPES)} are read, "
                "use an unquantized checkpoint"
            )


def _may_ignore(name: str, config: ModelConfig) -> bool:
    """Old exports carry rope buffers; tied models may carry the head that is the embedding again."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def _some(names: list[str]) -> str:
    rest = len(names) - MAX_NAMES_IN_ERROR
    return ", ".join(names[:MAX_NAMES_IN_ERROR]) + (f" and {rest} more" if rest > 0 else "")


class _Assembler:
    """Turns named tensors into the fused matrices that the model multiplies with."""

    def __init__(self, readers: dict[str, Any], config: ModelConfig, device: torch.device) -> None:
        self._readers = readers
        self._config = config
        self._device = device
        self._dtype = TORCH_DTYPES[config.dtype]

    def assemble(self, on_loaded: LoadProgress | None) -> ModelWeights:
        embedding = self._read("model.embed_tokens.weight")
        head = embedding if self._config.tie_word_embeddings else self._read("lm_head.weight")
        layers = []
        for layer in range(self._config.num_layers):
            layers.append(self._layer(f"model.layers.{layer}."))
            if on_loaded is not None:
                on_loaded(len(layers), self._config.num_layers)
        return ModelWeights(embedding, tuple(layers), self._norm("model.norm.weight"), DenseLinear(head))

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        mlp = DenseMlp(
            self._linear([f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"], config.mlp_bias),
            self._linear([f"{prefix}mlp.down_proj"], config.mlp_bias),
        )
        return LayerWeights(
            attention_in_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=self._linear([f"{prefix}self_attn.{name}_proj" for name in ("q", "k", "v")], config.qkv_bias),
            query_norm=None,
            key_norm=None,
            output=self._linear([f"{prefix}self_attn.o_proj"], config.output_bias),
            attention_out_norm=None,
            mlp_in_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            mlp=mlp,
            mlp_out_norm=None,
        )

    def _norm(self, name: str) -> Tensor:
        return self._read(name).float() + self._config.norm_offset

    def _linear(self, names: list[str], has_bias: bool) -> DenseLinear:
        weight = torch.cat([self._read(f"{name}.weight") for name in names])
        return DenseLinear(
            weight, torch.cat([self._read(f"{name}.bias") for name in names]) if has_bias else None
        )

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._readers[name].get_tensor(name)
        # A tensor from safetensors may sit at any byte offset of the file map; a clone is aligned and ours.
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)
