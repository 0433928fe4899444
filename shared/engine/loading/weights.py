"""Weights from safetensors, checked tensor by tensor against the model's shape before any is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.checkpoint import Checkpoint, OpenTensors
from shared.engine.loading.config import ModelConfig, MoeConfig
from shared.engine.loading.gguf.blocks import in_one_format
from shared.engine.loading.gguf.checkpoint import GgufCheckpoint, OpenGguf
from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.layers import DenseMlp, LatentWeights, LayerWeights, ModelWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear, Linear, deinterleaved, dequantize, fuse
from shared.engine.loading.packed_checkpoints import PackedTensors
from shared.engine.loading.quantize import policy, quantize
from shared.engine.loading.rotation_order import halves_order, latent_query_order, with_outputs_in_order
from shared.engine.loading.tensor_plan import Matrix, StackedExperts, TensorPlan
from shared.errors import InvalidRequest

MAX_NAMES_IN_ERROR = 3


MatrixPart = Literal["layer", "head", "latent"]
OpenFiles = OpenTensors | OpenGguf
LoadProgress = Callable[[int, int], None]
"""(layers loaded, layers in all)"""


def load_weights(
    model_dir: str | Path,
    config: ModelConfig,
    device: torch.device,
    on_loaded: LoadProgress | None = None,
    *,
    quantization: str = "none",
    quant_group: int = 0,
) -> ModelWeights:
    """Load all weights at once. `on_loaded` follows each layer. See `WeightReader` for the rest."""
    reader = WeightReader(model_dir, config, device, quantization=quantization, quant_group=quant_group)
    embedding = reader.embedding()
    layers = tuple(reader.layers(on_loaded))
    head = reader.head(embedding)
    if config.tie_word_embeddings and not isinstance(head, DenseLinear):
        embedding = dequantize(head, embedding.dtype)  # one matrix in two roles stays one matrix
    return ModelWeights(embedding, layers, reader.final_norm(), head)


class WeightReader:
    """Reads a checkpoint piece by piece: a backend that repacks a layer can drop it before the next one.

    Everything is checked when this is made: NotFound for missing files, InvalidRequest for missing, unknown,
    misshapen or non-float tensors and for damaged files. What is returned is a copy on `device`, in the
    config's dtype; between calls nothing of the files stays in memory. `quantization` and `quant_group` are
    EngineConfig's: dense matrices, also those that were dequantized, are quantized as `quantize.policy` says;
    codes of a packed checkpoint stay as they are, and on a CPU with quantization "none" a GGUF file's.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: ModelConfig,
        device: torch.device,
        *,
        quantization: str = "none",
        quant_group: int = 0,
    ) -> None:
        self._config = config
        self._device = device
        self._dtype = TORCH_DTYPES[config.dtype]
        self._formats = {
            "layer": policy(quantization, quant_group, "layer"),
            "head": policy(quantization, quant_group, "head"),
            "latent": None,
        }
        self._keeps_blocks = quantization == "none" and device.type == "cpu"
        gguf = find_gguf(model_dir)
        self._checkpoint = (
            Checkpoint(model_dir) if gguf is None else GgufCheckpoint(gguf, config, self._dtype)
        )
        self._plan = TensorPlan(config, self._checkpoint.tensors.keys())
        self._check_tensors()

    def embedding(self) -> Tensor:
        """[vocab, hidden]"""
        with self._checkpoint.reading() as files:
            return self._copy(files.read(self._plan.embedding))

    def head(self, embedding: Tensor) -> Linear:
        """[vocab, hidden]; of a tied model it is `embedding`, sharing its memory where dense."""
        with self._checkpoint.reading() as files:
            if self._config.tie_word_embeddings:
                if self._holds_blocks(files, (self._plan.embedding,)):
                    return files.read_blocks(self._plan.embedding)
                return self._quantized(DenseLinear(embedding), "head", self._plan.embedding)
            return self.linear(files, self._plan.head, "head")

    def final_norm(self) -> Tensor:
        with self._checkpoint.reading() as files:
            return self._norm(files, self._plan.final_norm)

    def layers(self, on_loaded: LoadProgress | None = None) -> Iterator[LayerWeights]:
        """Each layer once, in order. `on_loaded` is told of a layer when its taker is done with it."""
        for layer in range(self._config.num_layers):
            yield self.layer(layer)
            if on_loaded is not None:
                on_loaded(layer + 1, self._config.num_layers)

    def layer(self, layer: int) -> LayerWeights:
        with self._checkpoint.reading() as files:
            norms = {role: self._norm(files, name) for role, (name, _) in self._plan.norms(layer).items()}
            return LayerWeights(
                attention_in_norm=norms.get("attention_in_norm"),
                qkv=self._qkv(files, layer),
                query_norm=norms.get("query_norm"),
                key_norm=norms.get("key_norm"),
                output=self.linear(files, self._plan.output(layer)),
                attention_out_norm=norms.get("attention_out_norm"),
                mlp_in_norm=norms.get("mlp_in_norm"),
                mlp=self._mlp(files, layer),
                mlp_out_norm=norms.get("mlp_out_norm"),
                sinks=self._floats(files, self._plan.sinks(layer)) if self._config.attention_sinks else None,
                latent=self._latent(files, layer),
            )

    def _qkv(self, files: OpenFiles, layer: int) -> Linear:
        stored = self.linear(files, self._plan.qkv(layer))
        if not self._config.neighbours_rotate:
            return stored
        return with_outputs_in_order(stored, halves_order(self._config))

    def _latent(self, files: OpenFiles, layer: int) -> LatentWeights | None:
        query_up, latent_up = self._plan.query_up(layer), self._plan.latent_up(layer)
        if latent_up is None:
            return None
        config = self._config
        assert config.latent is not None
        queries = None if query_up is None else self.linear(files, query_up)
        if queries is not None and config.neighbours_rotate:
            queries = with_outputs_in_order(queries, latent_query_order(config))
        # Heads multiply their own part of it from both sides, for which codes have no product.
        both = self.linear(files, latent_up, "latent")
        weight = both.weight if isinstance(both, DenseLinear) else dequantize(both, self._dtype)
        heads = weight.view(config.num_heads, -1, config.latent.rank)
        key_up, value_up = heads[:, : config.latent.plain_dim], heads[:, config.latent.plain_dim :]
        return LatentWeights(queries, key_up.contiguous(), value_up.transpose(1, 2).contiguous())

    def linear(self, files: OpenFiles, matrix: Matrix, part: MatrixPart = "layer") -> Linear:
        """The one way in which matrices are read: dense or packed, its modules stacked, then quantized."""
        weights = [f"{module}.weight" for module in matrix.modules]
        if self._holds_blocks(files, weights):
            kept = in_one_format([files.read_blocks(name) for name in weights])
            return replace(fuse(kept, self._dtype), bias=self._bias(files, matrix))
        packed, names = self._plan.packed, self._checkpoint.tensors.keys()
        if packed is None or not any(packed.holds(module, names) for module in matrix.modules):
            return self._quantized(self._dense(files, matrix), part, *matrix.modules)
        parts: list[Linear] = []
        for module, num_out in zip(matrix.modules, matrix.num_out, strict=True):
            if packed.holds(module, names):
                # What comes out may share the file's memory, which ends with `files`.
                stored = PackedTensors(
                    module, (num_out, matrix.num_in), names, lambda name: self._stored(files, name)
                )
                parts.append(packed.read(stored, self._dtype))
            else:
                alone = Matrix((module,), (num_out,), matrix.num_in, matrix.has_bias)
                parts.append(self._dense(files, alone))
        fused = fuse(parts, self._dtype)
        return self._quantized(fused, part, *matrix.modules) if isinstance(fused, DenseLinear) else fused

    def _dense(self, files: OpenFiles, matrix: Matrix) -> DenseLinear:
        weights = [files.read(f"{module}.weight") for module in matrix.modules]
        return DenseLinear(self._stacked(weights), self._bias(files, matrix))

    def _bias(self, files: OpenFiles, matrix: Matrix) -> Tensor | None:
        biases = [files.read(f"{module}.bias") for module in matrix.modules] if matrix.has_bias else []
        return self._stacked(biases) if biases else None

    def _holds_blocks(self, files: OpenFiles, names: Sequence[str]) -> TypeGuard[OpenGguf]:
        """Return whether these matrices are to stay in the blocks in which they are stored."""
        return self._keeps_blocks and isinstance(files, OpenGguf) and all(map(files.holds_blocks, names))

    def _mlp(self, files: OpenFiles, layer: int) -> DenseMlp | MoeMlp:
        moe = self._config.layers[layer].moe
        if moe is None:
            gate_up, down = self._plan.mlp(layer)
            return DenseMlp(self.linear(files, gate_up), self.linear(files, down))
        shared = self._plan.shared_expert(layer)
        return MoeMlp(
            router=self._copy(files.read(self._plan.router(layer))),
            experts=tuple(self._experts(files, layer, moe)),
            router_bias=self._copy(files.read(self._plan.router_bias(layer))) if moe.router_bias else None,
            choice_bias=self._floats(files, self._plan.choice_bias(layer)) if moe.choice_bias else None,
            shared=None if shared is None else DenseMlp(*(self.linear(files, matrix) for matrix in shared)),
            shared_gate=self._copy(files.read(self._plan.shared_gate(layer))) if moe.shared_gate else None,
        )

    def _experts(self, files: OpenFiles, layer: int, moe: MoeConfig) -> Iterator[DenseMlp]:
        stacked = self._plan.stacked_experts(layer)
        if stacked is None:
            for pair in self._plan.experts(layer):
                yield DenseMlp(*(self.linear(files, matrix) for matrix in pair))
            return
        for expert in range(moe.num_experts):
            gate_up, down = (
                self._stacked_expert(files, stacked, name, expert, moe.expert_bias)
                for name in (stacked.gate_up, stacked.down)
            )
            yield DenseMlp(deinterleaved(gate_up) if stacked.interleaved else gate_up, down)

    def _stacked_expert(
        self, files: OpenFiles, stacked: StackedExperts, name: str, expert: int, has_bias: bool
    ) -> Linear:
        packed = self._plan.packed_experts(name)
        bias = self._copy(files.read_part(stacked.bias(name), expert)) if has_bias else None
        if packed is None:
            weight = files.read_part(name, expert)
            weight = self._copy(weight.T if stacked.interleaved else weight).contiguous()
            return self._quantized(DenseLinear(weight, bias), "layer", name)

        def read(part: str) -> Tensor:
            return files.read_part(part, expert).to(self._device, copy=True)

        linear = packed.read_parameter(name, read, self._dtype, bias)
        return self._quantized(linear, "layer", name) if isinstance(linear, DenseLinear) else linear

    def _norm(self, files: OpenFiles, name: str) -> Tensor:
        return self._floats(files, name) + self._config.norm_offset

    def _floats(self, files: OpenFiles, name: str) -> Tensor:
        """Read a tensor in float32, which keeps all that is read exactly."""
        return files.read(name).to(self._device, torch.float32, copy=True)

    def _quantized(self, linear: DenseLinear, part: MatrixPart, *names: str) -> Linear:
        wanted = self._formats[part]
        return linear if wanted is None else quantize(linear, wanted.bits, wanted.group, ", ".join(names))

    def _stacked(self, parts: list[Tensor]) -> Tensor:
        """Stack all rows of `parts` in one new tensor, written once."""
        num_rows = sum(len(part) for part in parts)
        out = torch.empty((num_rows, *parts[0].shape[1:]), dtype=self._dtype, device=self._device)
        first = 0
        for part in parts:
            out[first : first + len(part)].copy_(part)
            first += len(part)
        return out

    def _stored(self, files: OpenFiles, name: str) -> Tensor:
        return files.read(name).to(self._device, copy=True)

    def _copy(self, tensor: Tensor) -> Tensor:
        # A tensor from safetensors may sit at any byte offset of the file map; a copy is aligned and ours.
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def _check_tensors(self) -> None:
        stored, expected = self._checkpoint.tensors, self._plan.expected()
        missing = sorted(expected.keys() - stored.keys())
        if missing:
            raise InvalidRequest(
                f"checkpoint lacks {_some(missing)}; config.json and weights do not belong together"
            )
        unknown = sorted(name for name in stored.keys() - expected.keys() if not self._plan.may_ignore(name))
        if unknown:
            raise InvalidRequest(
                f"checkpoint holds {_some(unknown)}, which a {self._config.architecture} does not have"
            )
        for name, spec in expected.items():
            if stored[name].shape not in (spec.shape, spec.other_shape):
                raise InvalidRequest(
                    f"tensor {name} has shape {stored[name].shape}, config.json says {spec.shape}; "
                    "config.json and weights do not belong together"
                )
            if stored[name].dtype not in spec.dtypes:
                raise InvalidRequest(
                    f"tensor {name} is {stored[name].dtype}; only {', '.join(spec.dtypes)} are read, "
                    "use an unquantized checkpoint"
                )


def _some(names: list[str]) -> str:
    rest = len(names) - MAX_NAMES_IN_ERROR
    return ", ".join(names[:MAX_NAMES_IN_ERROR]) + (f" and {rest} more" if rest > 0 else "")
