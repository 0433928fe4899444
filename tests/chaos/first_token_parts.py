"""Take first tokens apart: in which phases their time goes, and how much of what is too much is waiting in
lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from statistics import mean

from tests.support.client import Answer
from tests.support.percentile import percentile

CLIENT = "client"
"""The time that no gateway knows of: gRPC's way to it and back, and the client's own."""
QUEUES = ("line", "prefill.queue", "decode.prefill_queue")
"""The phases in which a request waits behind others; in all the rest it is under way or being computed."""
SLOWEST_SHARE = 0.05

Parts = dict[str, float]
"""Milliseconds by phase."""


def first_token_parts(answer: Answer) -> Parts:
    """Return the phases up to the first token, in their order; together they are the client's time to it."""
    assert answer.end is not None
    timeline = answer.end.timeline
    parts: Parts = {}
    for phase in timeline.phases:
        if phase.start_us + phase.duration_us <= timeline.ttft_us:
            parts[phase.name] = parts.get(phase.name, 0.0) + phase.duration_us / 1e3
    return {**parts, CLIENT: (answer.ttft_us - timeline.ttft_us) / 1e3}


def parts_table(alone: Sequence[Parts], beside: Sequence[Parts]) -> list[tuple[str, ...]]:
    """Return a row for each phase: p50 and p99 of both."""
    names = list(dict.fromkeys(name for parts in (*alone, *beside) for name in parts))
    return [(name, _spread(alone, name), _spread(beside, name)) for name in names]


def excess_ms(alone: Sequence[Parts], beside: Sequence[Parts], part: float = 1.0) -> tuple[float, float]:
    """Return by how much first tokens take longer beside than alone, the mean of the slowest `part` of both,
    and how much of that is waiting in lines; NaN where none came."""
    if not alone or not beside:
        return nan, nan
    slow_alone, slow_beside = _slowest(alone, part), _slowest(beside, part)
    total = mean(map(_total, slow_beside)) - mean(map(_total, slow_alone))
    return total, mean(map(_queued, slow_beside)) - mean(map(_queued, slow_alone))


def _slowest(answers: Sequence[Parts], part: float) -> Sequence[Parts]:
    return sorted(answers, key=_total)[-max(1, round(part * len(answers))) :]


def _total(parts: Parts) -> float:
    return sum(parts.values())


def _queued(parts: Parts) -> float:
    return sum(parts.get(name, 0.0) for name in QUEUES)


def _spread(answers: Sequence[Parts], name: str) -> str:
    values = [parts.get(name, 0.0) for parts in answers]
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f}"
