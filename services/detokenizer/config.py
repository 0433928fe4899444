"""Configuration of the detokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config.fields import ServiceConfig, field_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizerConfig(ServiceConfig):
    max_sessions: int = field_of(
        4096,
        help="requests decoded at the same time; more are refused as overloaded",
        minimum=1,
        maximum=1 << 20,
    )
    max_early_rows: int = field_of(
        4096, help="rows of tokens kept for requests whose Open has not come yet", minimum=1, maximum=1 << 20
    )
    open_grace_ms: int = field_of(
        1000, help="how long tokens wait for their request's Open", minimum=1, maximum=60_000
    )
    gap_grace_ms: int = field_of(
        100,
        help="how long tokens wait for those before them, before a gap is reported",
        minimum=1,
        maximum=60_000,
    )
