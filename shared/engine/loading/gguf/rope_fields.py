"""Read how a GGUF file scales positions: by keys, and by tensors with a divisor per
frequency."""

from __future__ import annotations

import math
import struct
from typing import Any

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.model_metadata import ModelMetadata

LONG, SHORT, FREQUENCIES = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"
ROPE_TENSORS = (LONG, SHORT, FREQUENCIES)
MAX_DIVISORS = 4096
"""Half of the dimensions of a head: far above what there is, and read before weights are."""


def rope_fields(metadata: ModelMetadata, rotary_dim: int) -> dict[str, Any]:
    """`rope_scaling` of a config.json; an empty one where positions are as they are.

    Raises InvalidRequest for a kind of scaling that is not read, and for divisors that cannot be.
    """
    tensors, context = metadata.header.tensors, metadata.integer("context_length")
    kind = metadata.text("rope.scaling.type")
    if kind not in ("", "none", "linear", "yarn", "longrope", "llama3"):
        raise metadata.header.refused(f"its rope.scaling.type {shown(kind)} is not read")
    if LONG in tensors or SHORT in tensors:
        return {
            "rope_type": "longrope",
            "long_factor": _divisors(metadata.header, LONG, rotary_dim),
            "short_factor": _divisors(metadata.header, SHORT, rotary_dim),
            "original_max_position_embeddings": metadata.integer(
                "rope.scaling.original_context_length", context
            ),
            **_attention_factor(metadata),
        }
    if FREQUENCIES in tensors:
        # The scaling of Llama 3, worked out: the same divisors for sequences of every length.
        divisors = _divisors(metadata.header, FREQUENCIES, rotary_dim)
        return {
            "rope_type": "longrope",
            "long_factor": divisors,
            "short_factor": divisors,
            "factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind in ("longrope", "llama3"):
        raise metadata.header.refused(f"it lacks the tensors with the divisors of its {kind} scaling")
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    if kind in ("", "linear") and factor not in (0.0, 1.0):
        return {"rope_type": "linear", "factor": factor}
    return _yarn(metadata, factor, context) if kind == "yarn" else {}


def _original_context(metadata: ModelMetadata, context: int) -> int:
    return metadata.integer("rope.scaling.original_context_length", context)


def _yarn(metadata: ModelMetadata, factor: float, context: int) -> dict[str, Any]:
    is_mistral = metadata.architecture == "mistral3"
    if metadata.number("rope.scaling.yarn_log_multiplier", 0.0) and not is_mistral:
        raise metadata.header.refused("its rope.scaling.yarn_log_multiplier is not read")
    fields: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original_context(metadata, context),
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    if is_mistral:  # the growth of the stretch and its multiplier take each other away
        fields["attention_factor"] = 1.0
    elif metadata.has("rope.scaling.yarn_attn_factor"):
        fields["attention_factor"] = metadata.number("rope.scaling.yarn_attn_factor")
    elif metadata.has("rope.scaling.attn_factor"):
        growth = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        fields["attention_factor"] = metadata.number("rope.scaling.attn_factor") * growth
    return fields


def _attention_factor(metadata: ModelMetadata) -> dict[str, float]:
    """Return the attention factor; where the file has none it follows from how far the context was
    stretched."""
    name = "rope.scaling.attn_factor"
    return {"attention_factor": metadata.number(name)} if metadata.has(name) else {}


def _divisors(header: GgufHeader, name: str, rotary_dim: int) -> list[float]:
    tensor = header.tensors.get(name)
    if tensor is None:
        raise header.refused(f"it lacks the tensor {name}")
    count = rotary_dim // 2
    if tensor.type.name != "F32" or tensor.shape != (count,) or count > MAX_DIVISORS:
        raise header.refused(
            f"{name} has shape {tensor.shape} in {tensor.type.name}; it must hold {count} numbers in F32, "
            f"and at most {MAX_DIVISORS}"
        )
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        stored = file.read(tensor.num_bytes)
    if len(stored) < tensor.num_bytes:
        raise header.refused("it became shorter while it was read; download it again")
    return list(struct.unpack(f"<{count}f", stored))
