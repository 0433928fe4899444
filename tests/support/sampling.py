"""Sampling parameters as messages and engines take them, short unless told otherwise."""

from __future__ import annotations

from typing import Any

from shared.sampling import SamplingParams


def sampling(**fields: Any) -> SamplingParams:
    """Greedy, 40 tokens at most; `fields` are those of `SamplingParams`."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 40} | fields)
