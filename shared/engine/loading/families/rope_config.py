"""Rope settings in both spellings: `rope_parameters`, and `rope_theta` with `rope_scaling` before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from shared.engine.loading.families.raw_config import RawConfig, shown
from shared.engine.loading.model_config import RopeConfig, RopeKind
from shared.errors import InvalidRequest

DEFAULT_THETA = 10000.0
SUPPORTED_ROPE_TYPES: tuple[str, ...] = get_args(RopeKind)


def read_rope(raw: RawConfig, head_dim: int) -> RopeConfig:
    """The one rope of all layers that have one."""
    return rope_of(raw.part("rope_scaling") or raw.part("rope_parameters"), raw, head_dim)


def rope_of(fields: Mapping[str, Any], raw: RawConfig, head_dim: int) -> RopeConfig:
    """`fields` as a rope; what they leave out is looked up in `raw`, the model's config."""
    nested = sorted(name for name, value in fields.items() if isinstance(value, dict))
    if nested:
        raise InvalidRequest(
            f"config.json: a rope per layer type ({', '.join(nested)}) is not supported for this architecture"
        )
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind not in SUPPORTED_ROPE_TYPES:
        raise InvalidRequest(
            f"rope type {shown(kind)} is not supported; use one of {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    rope = RawConfig(fields, raw.dtype)
    theta = rope.number("rope_theta", raw.number("rope_theta", DEFAULT_THETA))
    share = rope.number("partial_rotary_factor", raw.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise InvalidRequest(
            f"config.json: {rotary_dim} of {head_dim} dimensions of a head would rotate; "
            "rotary embeddings need an even number of them"
        )
    context = raw.integer("max_position_embeddings")
    if kind != "dynamic":
        stated = rope.integer("original_max_position_embeddings", context)
        context = raw.integer("original_max_position_embeddings", stated)
    factor = rope.optional_number("factor")
    if factor is None:
        factor = raw.integer("max_position_embeddings") / context
    if (kind == "dynamic" and rotary_dim < 4) or (kind in ("yarn", "longrope") and min(theta, context) <= 1):
        raise InvalidRequest(f"config.json: rope type {kind} cannot scale so small a rope")
    return _of_kind(cast(RopeKind, kind), RopeConfig(theta, rotary_dim), factor, context, rope)


def _of_kind(kind: RopeKind, plain: RopeConfig, factor: float, context: int, fields: RawConfig) -> RopeConfig:
    theta, rotary_dim = plain.theta, plain.rotary_dim
    if kind == "llama3":
        low, high = fields.number("low_freq_factor", 1.0), fields.number("high_freq_factor", 4.0)
        if high <= low:
            raise InvalidRequest("config.json: high_freq_factor must be above low_freq_factor")
        return RopeConfig(
            theta, rotary_dim, kind, factor, context, low_freq_factor=low, high_freq_factor=high
        )
    if kind == "yarn":
        return RopeConfig(
            theta,
            rotary_dim,
            kind,
            factor,
            context,
            beta_fast=fields.number("beta_fast", 32.0),
            beta_slow=fields.number("beta_slow", 1.0),
            truncate=fields.flag("truncate", True),
            attention_factor=fields.number("attention_factor", _yarn_attention_factor(factor, fields)),
        )
    if kind == "longrope":
        growth = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
        return RopeConfig(
            theta,
            rotary_dim,
            kind,
            factor,
            context,
            short_factors=fields.numbers("short_factor", rotary_dim // 2),
            long_factors=fields.numbers("long_factor", rotary_dim // 2),
            attention_factor=fields.number("attention_factor", growth),
        )
    return RopeConfig(theta, rotary_dim, kind, factor, context)


def _yarn_attention_factor(factor: float, fields: RawConfig) -> float:
    scale, of_all_dims = fields.optional_number("mscale"), fields.optional_number("mscale_all_dim")
    if scale is not None and of_all_dims is not None:
        return yarn_growth(factor, scale) / yarn_growth(factor, of_all_dims)
    return yarn_growth(factor, 1.0)


def yarn_growth(factor: float, scale: float) -> float:
    """Return what yarn multiplies cosines and sines by in a context that is `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
