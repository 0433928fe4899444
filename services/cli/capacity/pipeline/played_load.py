"""The load that is played: who comes when and with which lengths, the same again each time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

from services.cli.bench.plan.arrivals import seeded_arrivals
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.workload import Workload

SEED = 0
"""Loads that differ in their rate alone are the same load, faster."""


def steady_load(workload: Workload, count: int, rate: float) -> list[PlayedRequest]:
    """Return so many requests of a load that goes on, `rate` a second."""
    times_s = islice(seeded_arrivals(rate, workload.arrival_scv**0.5, SEED), count)
    return load_at(workload, list(times_s))


def load_at(workload: Workload, times_s: Sequence[float]) -> list[PlayedRequest]:
    """Return requests of these times, whose lengths are drawn from those of the workload."""
    random = Random(f"{SEED}/lengths")  # noqa: S311 - it has to be repeatable, not secret
    prompts, answers = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    computed = workload.computed_tokens.tolist()
    drawn = [random.randrange(len(prompts)) for _ in times_s]
    return [
        PlayedRequest(at_s, prompts[index], computed[index], round(answers[index]))
        for at_s, index in zip(times_s, drawn, strict=True)
    ]
