"""Percentiles of one quantity over calls, each with the interval that the true one is in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.stats.bootstrap import clustered_interval
from services.cli.bench.stats.quantiles import order_interval, sorted_quantile

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
OF_CALLS: dict[str, Callable[[CallRecord], float]] = {
    "ttft": lambda record: record.ttft_s,
    "tpot": lambda record: record.tpot_s,
    "e2e": lambda record: record.total_s,
    "ttua": lambda record: record.ttua_s,
    "queue": lambda record: record.queue_s,
}
"""Quantities that a call has one of; `itl` has many, and `job` is of several calls."""


@dataclass(frozen=True, slots=True)
class QuantileFigure:
    """`low` and `high` bound it at 95 %; infinite where there are too few values to say."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        return {name: known(getattr(self, name)) for name in ("value", "low", "high")}


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Figures in milliseconds."""

    count: int
    mean: float
    quantiles: dict[str, QuantileFigure]

    def as_json(self) -> dict[str, Any]:
        found = {name: figure.as_json() for name, figure in self.quantiles.items()}
        return {"count": self.count, "mean": known(self.mean), **found}


def known(value: float) -> float | None:
    """Return what JSON can say: None for what is unknown or without a bound."""
    return value if math.isfinite(value) else None


def figures_of(values_s: Iterable[float]) -> LatencyFigures:
    """Return those of independent values; those that are nan do not count."""
    given = np.asarray([value for value in values_s if not math.isnan(value)], dtype=np.float64)
    ascending = np.sort(given) * 1e3
    quantiles = {
        name: QuantileFigure(sorted_quantile(ascending, share), *order_interval(ascending, share))
        for name, share in SHARES.items()
    }
    return LatencyFigures(len(ascending), float(ascending.mean()) if len(ascending) else math.nan, quantiles)


def figures_of_gaps(records: Sequence[CallRecord], seed: int) -> LatencyFigures:
    """Return those of the times between deliveries, whose intervals are by whole calls."""
    gaps = [record.gaps_s for record in records]
    gaps = [each for each in gaps if each]
    values = np.asarray([gap for each in gaps for gap in each], dtype=np.float64) * 1e3
    owners = np.repeat(np.arange(len(gaps)), [len(each) for each in gaps])
    ascending = np.sort(values)
    quantiles = {
        name: QuantileFigure(
            sorted_quantile(ascending, share), *clustered_interval(values, owners, share, seed)
        )
        for name, share in SHARES.items()
    }
    return LatencyFigures(len(values), float(values.mean()) if len(values) else math.nan, quantiles)


def job_figures(records: Sequence[CallRecord], warmup_s: float) -> LatencyFigures:
    """Return those of jobs: dialogues of several calls, from the first until all of them have finished.

    One that began in the warm-up does not count.
    """
    jobs: dict[int, list[CallRecord]] = {}
    for record in records:
        jobs.setdefault(record.number, []).append(record)
    spans = (
        (min(record.intended_s for record in calls), max(record.ended_s for record in calls))
        for calls in jobs.values()
        if len(calls) > 1 and all(record.finished for record in calls)
    )
    return figures_of(ended_s - began_s for began_s, ended_s in spans if began_s >= warmup_s)


def all_figures(records: Sequence[CallRecord], seed: int) -> dict[str, LatencyFigures]:
    """Return the figures of each quantity."""
    found = {name: figures_of(map(of_call, records)) for name, of_call in OF_CALLS.items()}
    return {"ttft": found.pop("ttft"), "itl": figures_of_gaps(records, seed), **found}
