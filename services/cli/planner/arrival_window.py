"""One window of time: how much the gateways counted of one model in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ArrivalWindow:
    """`ended_s` is its end by the time of day (unix s), `span_s` its length; `requests` came in it.

    Tokens are those of requests that were answered in it, of `answered` ones; `prompt_lengths` counts them by
    the upper edge of their bucket, in tokens.
    """

    ended_s: float
    span_s: float
    requests: float
    answered: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    output_tokens: float = 0.0
    prompt_lengths: Mapping[float, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.span_s

    @property
    def middle_s(self) -> float:
        return self.ended_s - self.span_s / 2
