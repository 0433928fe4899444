"""What config.json says about a model, checked before any weight is read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.errors import InvalidRequest, NotFound

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
SUPPORTED_DTYPES = ("float32", "bfloat16")
MAX_CONFIG_BYTES = 4 << 20

_DTYPE_NAMES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `default` (theta alone), `linear` (positions / factor), `llama3` (by wavelength)."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A sparse MLP: each token goes to the `experts_per_token` experts with the largest router logits.

    Their outputs are weighted by the softmax over all experts, with `normalize` scaled to sum to one.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer. `rope` None: no positions. `window_tokens` n: a row sees itself
    and the n - 1 tokens before it; None: all before it. `moe` None: a dense MLP."""

    rope: RopeConfig | None
    window_tokens: int | None = None
    moe: MoeConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model. `dtype` is the one that the engine computes in.

    norms: "pre" normalises what goes into attention and MLP, "post" what comes out of them, "both" both.
    qk_norm: "none", "head" (each head by itself) or "all" (all query heads as one vector,
    all key heads as one).
    norm_offset is added to every norm weight (Gemma stores w - 1).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[LayerConfig, ...]
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norms: Literal["pre", "post", "both"] = "pre"
    norm_offset: float = 0.0
    qk_norm: Literal["none", "head", "all"] = "none"
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_softcap: float = 0.0  # 0: none; else cap * tanh(score / cap)
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def score_scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5


def load_model_config(model_dir: str | Path, dtype: str = "auto") -> ModelConfig:
    """Read config.json and generation_config.json of a Hugging Face directory.

    Raises NotFound when the directory or config.json is missing, InvalidRequest when the model is one
    that this engine cannot run; the sentence names the architecture or field.
    """
    folder = Path(model_dir)
    if not folder.is_dir():
        raise NotFound(f"model directory {str(folder)!r} does not exist; give a Hugging Face model directory")
    raw = _read_json(folder / "config.json")
    if raw is None:
        raise NotFound(f"{str(folder)!r} has no config.json; give a Hugging Face model directory")
    _refuse_unsupported(raw)
    num_heads = _positive(raw, "num_attention_heads")
    num_kv_heads = _positive(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise InvalidRequest(
            f"config.json: num_attention_heads {num_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    hidden_size = _positive(raw, "hidden_size")
    head_dim = _positive(raw, "head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise InvalidRequest(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    max_position_embeddings = _positive(raw, "max_position_embeddings")
    vocab_size = _positive(raw, "vocab_size")
    generation = _read_json(folder / "generation_config.json") or {}
    return ModelConfig(
        architecture=raw["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_positive_float(raw, "rms_norm_eps", 1e-6),
        layers=(LayerConfig(_rope(raw, max_position_embeddings)),) * _positive(raw, "num_hidden_layers"),
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bool(raw.get("attention_bias", False)),
        output_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        dtype=_compute_dtype(raw, dtype),
        bos_token_id=next(iter(_token_ids(raw, "bos_token_id")), None),
        eos_token_ids=_eos_token_ids(raw, generation, vocab_size),
    )


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    architectures = raw.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if name not in SUPPORTED_ARCHITECTURES:
        raise InvalidRequest(
            f"architecture {name!r} is not supported; use one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if raw.get("quantization_config"):
        raise InvalidRequest("quantized checkpoints are not supported; use the float32 or bfloat16 one")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise InvalidRequest(f"hidden_act {activation!r} is not supported for {name}; it must be 'silu'")


def _compute_dtype(raw: dict[str, Any], wanted: str) -> str:
    if wanted != "auto":
        if wanted not in _DTYPE_NAMES:
            raise InvalidRequest(f"dtype {wanted!r} is not supported; use auto, float32 or bfloat16")
        return _DTYPE_NAMES[wanted]
    stated = raw.get("dtype") or raw.get("torch_dtype")
    if stated not in SUPPORTED_DTYPES:
        raise InvalidRequest(f"config.json: dtype is {stated!r}; choose dtype float32 or bfloat16 yourself")
    return str(stated)


def _rope(raw: dict[str, Any], max_position_embeddings: int) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (before)."""
    fields = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(fields, dict):
        raise InvalidRequest("config.json: rope_parameters must be an object")
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind not in SUPPORTED_ROPE_TYPES:
        raise InvalidRequest(
            f"rope type {kind!r} is not supported; use one of {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    theta = _positive_float(fields, "rope_theta", _positive_float(raw, "rope_theta", 10000.0))
    rope = RopeConfig(
        theta=theta,
        kind=kind,
        factor=_positive_float(fields, "factor", 1.0),
        low_freq_factor=_positive_float(fields, "low_freq_factor", 1.0),
        high_freq_factor=_positive_float(fields, "high_freq_factor", 4.0),
        original_max_position_tokens=_positive(
            fields, "original_max_position_embeddings", max_position_embeddings
        ),
    )
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise InvalidRequest("config.json: high_freq_factor must be above low_freq_factor")
    return rope


def _eos_token_ids(raw: dict[str, Any], generation: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Every id that either file calls an end: chat models list their turn end in one of the two only.

    Ids outside the vocabulary (some exports write -1 for "none") can never be drawn and are left out.
    """
    both = dict.fromkeys(_token_ids(raw, "eos_token_id") + _token_ids(generation, "eos_token_id"))
    return tuple(token_id for token_id in both if 0 <= token_id < vocab_size)


def _token_ids(raw: dict[str, Any], name: str) -> tuple[int, ...]:
    value = raw.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
        raise InvalidRequest(f"config: {name} must be an integer or a list of integers, not {value!r}")
    return tuple(ids)


def _positive(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidRequest(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _positive_float(raw: dict[str, Any], name: str, default: float) -> float:
    value = raw.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidRequest(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a small JSON file; None where the file does not exist."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise InvalidRequest(
            f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes; it is not a model's config"
        )
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{path.name} is not valid JSON ({error}); download the model again") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path.name} is not a JSON object; download the model again")
    return value
