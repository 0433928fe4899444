"""Read config.json of a model, checked before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.engine.loading.families import find_family
from shared.engine.loading.families.raw_config import RawConfig, shown, token_ids
from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.read_config import read_gguf_config
from shared.engine.loading.model_config import LayerConfig, ModelConfig, MoeConfig, RopeConfig
from shared.errors import InvalidRequest, NotFound

__all__ = [
    "GENERATION_CONFIG",
    "LayerConfig",
    "ModelConfig",
    "MoeConfig",
    "RopeConfig",
    "load_model_config",
    "read_json_object",
]

_AUTO_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}
"""The dtype that `auto` computes in. No backend computes in float16, in which activations overflow."""
READABLE_METHODS: dict[str, tuple[int, ...]] = {
    "gptq": (4, 8),
    "awq": (4,),
    "compressed-tensors": (),
    "fp8": (),
    "mxfp4": (),
}
"""Quantization methods of checkpoints that are read, and their bits per weight where `bits` says so."""
GENERATION_CONFIG = "generation_config.json"
MAX_CONFIG_BYTES = 4 << 20
"""The longest config.json or generation_config.json."""

_DTYPE_NAMES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


def load_model_config(model_dir: str | Path, dtype: str = "auto") -> ModelConfig:
    """Read config.json and generation_config.json of a Hugging Face directory, or a GGUF file's metadata.

    Raises NotFound when the directory or config.json is missing, InvalidRequest when the model is one
    that this engine cannot run; the sentence names the architecture or field.
    """
    gguf = find_gguf(model_dir)
    if gguf is not None:
        return read_gguf_config(gguf, _known_dtype(dtype))
    folder = Path(model_dir)
    if not folder.is_dir():
        raise NotFound(
            f"model directory {str(folder)!r} does not exist; "
            "give a Hugging Face model directory or a GGUF file"
        )
    fields = read_json_object(folder / "config.json")
    if fields is None:
        raise NotFound(f"{str(folder)!r} has no config.json; give a Hugging Face model directory")
    architectures = fields.get("architectures")
    family = find_family(architectures[0] if isinstance(architectures, list) and architectures else None)
    _check_quantization(fields)
    generation = read_json_object(folder / GENERATION_CONFIG) or {}
    # Chat models list their turn end in one of the two files only.
    ends = dict.fromkeys(token_ids(fields, "eos_token_id") + token_ids(generation, "eos_token_id"))
    return family.read(RawConfig(fields, _compute_dtype(fields, dtype), tuple(ends)))


def _check_quantization(fields: dict[str, Any]) -> None:
    """Refuse packed checkpoints that `packed_checkpoints/` cannot read."""
    packed = fields.get("quantization_config")
    if packed is None:
        return
    stated = packed if isinstance(packed, dict) else {}
    method, bits = stated.get("quant_method"), stated.get("bits")
    readable = READABLE_METHODS.get(method) if isinstance(method, str) else None
    if readable is None or (readable and bits not in readable):
        known = ", ".join(name + _with_bits(bits) for name, bits in READABLE_METHODS.items())
        raise InvalidRequest(
            f"checkpoints quantized with {shown(method)} at {shown(bits)} bits are not supported; "
            f"use {known}, or the unquantized checkpoint"
        )


def _with_bits(values: tuple[int, ...]) -> str:
    return f" with {' or '.join(map(str, values))} bits" if values else ""


def _compute_dtype(fields: dict[str, Any], wanted: str) -> str:
    known = _known_dtype(wanted)
    if known is not None:
        return known
    stated = fields.get("dtype") or fields.get("torch_dtype")
    if not isinstance(stated, str) or stated not in _AUTO_DTYPES:
        raise InvalidRequest(
            f"config.json: dtype is {shown(stated)}; choose dtype float32 or bfloat16 yourself"
        )
    return _AUTO_DTYPES[stated]


def _known_dtype(wanted: str) -> str | None:
    """Return the dtype, or None for auto: what the checkpoint is stored in decides."""
    if wanted == "auto":
        return None
    if wanted not in _DTYPE_NAMES:
        raise InvalidRequest(f"dtype {wanted!r} is not supported; use auto, float32 or bfloat16")
    return _DTYPE_NAMES[wanted]


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The object in a small JSON file; None where the file does not exist. Raises InvalidRequest."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise InvalidRequest(
            f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes; it is not a model's config"
        )
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path.name} is not valid JSON ({error}); download the model again") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path.name} is not a JSON object; download the model again")
    return value
