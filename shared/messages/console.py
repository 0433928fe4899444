"""Messages about what a console shows: the gateway that serves it asks every other one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """gateway → gateway (ask): which requests do you have, and what were the last minutes like? Answered by a
    ConsoleReport."""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A request in its `phase`, of whose output there are so many `tokens`."""

    id: str
    tenant: str
    model: str
    phase: str
    prompt_tokens: int
    tokens: int
    replacements: int


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """An instance that a request was routed to."""

    role: str
    instance: str


@dataclass(frozen=True, slots=True)
class TimedPhase:
    """A phase of a request, from so many microseconds after its beginning on."""

    name: str
    start_us: int
    duration_us: int


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A request that has ended; `views` are the reasons to show it, `ttft_us` is None where no token was
    delivered."""

    id: str
    views: tuple[str, ...]
    tenant: str
    model: str
    outcome: str
    error: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    replacements: int
    ended_unix_ms: int
    ttft_us: int | None
    total_us: int
    route: tuple[RequestPlace, ...]
    phases: tuple[TimedPhase, ...]


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Counts of a few seconds, so many slots ago, 0 for the one that is not over: ends by outcome, tokens
    that were delivered, and times by the bin of a histogram."""

    slots_ago: int
    outcomes: tuple[tuple[str, int], ...]
    tokens: int
    ttft: tuple[tuple[int, int], ...]
    inter_token: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ConsoleReport:
    """The part that a gateway has in what a console shows. `live` counts all that run; slots in which nothing
    was counted are left out."""

    live: int
    running: tuple[RunningRow, ...]
    ended: tuple[EndedRow, ...]
    slots: tuple[SlotCounts, ...]
