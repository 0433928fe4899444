"""Rows of what-if: the same question with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from services.cli.capacity.prediction import Prediction
from services.cli.capacity.profile import MAX_ROLE_INSTANCES, InstanceCounts
from services.cli.capacity.sizing import CapacityQuestion, breaking_point

CACHED_MORE = 0.5


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """`most_rate`: the greatest rate at which everything is kept."""

    change: str
    prediction: Prediction
    most_rate: float


def what_if_rows(question: CapacityQuestion, counts: InstanceCounts) -> list[WhatIfRow]:
    """Return the deployment as it is, and with each change."""
    rows = [
        WhatIfRow(change, changed.predict(instances), breaking_point(changed, instances).rate)
        for change, changed, instances in _changes(question, counts)
    ]
    twice = question.predict(counts, 2 * question.workload.rate)
    return [*rows, WhatIfRow("twice the rate", twice, rows[0].most_rate)]


def _changes(
    question: CapacityQuestion, counts: InstanceCounts
) -> Iterator[tuple[str, CapacityQuestion, InstanceCounts]]:
    workload = question.workload
    yield "as it is", question, counts
    for role in ("decode", "prefill"):
        if counts.of(role) < MAX_ROLE_INSTANCES:
            yield f"one more {role} worker", question, counts.with_one(role, 1)
    if question.profile.int8 is not None:
        yield "int8 weights", replace(question, profile=question.profile.quantized()), counts
    cached = replace(question, workload=workload.more_cached(CACHED_MORE))
    yield "half of the prompts cached", cached, counts
