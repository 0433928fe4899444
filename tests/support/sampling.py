"""Sampling parameters as messages and engines take them, short unless told otherwise."""

from __future__ import annotations

from typing import Any

from shared.sampling.parameters import SCALARS, SamplingParams

OTHER_SCALARS: dict[str, Any] = {
    name: {float: 0.5, int: 3, bool: True}[type(definition.default)] for name, definition in SCALARS.items()
}
"""A value that is not the default, for every number and flag there is; all of them go together."""


def sampling(**fields: Any) -> SamplingParams:
    """Greedy, 40 tokens at most; `fields` are those of `SamplingParams`."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 40} | fields)
