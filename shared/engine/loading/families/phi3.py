"""Phi 3 and Phi 4 mini: matrices stored fused, longrope, a rope on a part of each head, a sliding window."""

from __future__ import annotations

from shared.engine.loading.families.family import Family, TensorNames, decoder, with_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(rms_norm_eps=1e-5, original_max_position_embeddings=4096)
    raw = RawConfig({**raw.fields, **_rope_fields(raw)}, raw.dtype, raw.eos_token_ids)
    return with_windows(raw, decoder(raw))


def _rope_fields(raw: RawConfig) -> dict[str, object]:
    """The first published models call longrope "su", and some that use it "yarn"."""
    fields = dict(raw.part("rope_scaling") or raw.part("rope_parameters"))
    kind = fields.get("rope_type") or fields.get("type")
    kind = "longrope" if kind in ("su", "yarn") else kind
    return {"rope_scaling": None, "rope_parameters": {**fields, "rope_type": kind}}


FAMILY = Family(
    "Phi3ForCausalLM", read, TensorNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
)
