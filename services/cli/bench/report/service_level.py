"""Objectives of a service: what a load has to keep, and which of its calls did."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np

from services.cli.bench.report.latency_figures import OF_CALLS, SHARES, LatencyFigures
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.stats.quantiles import sorted_quantile

OF_SOURCE = re.compile(r"([A-Za-z][\w-]{0,39}):(.+)")
"""A source's name before an objective that is of its calls alone."""
LATENCY = re.compile(r"(ttft|itl|tpot|e2e|ttua|queue|job)_(p50|p90|p95|p99|p99\.9)<([0-9.]+)(ms|s)")
SHARE = re.compile(r"(errors|sheds)<([0-9.]+)%")
RATE = re.compile(r"(goodput|requests_per_s|output_tokens_per_s)>([0-9.]+)")
FORMS = "ttft_p99<300ms, itl_p99<50ms, errors<1%, sheds<5%, goodput>3 or output_tokens_per_s>100"


class MeasuredFigures(Protocol):
    """Figures that were measured of a load, or of one of its sources."""

    @property
    def latencies(self) -> Mapping[str, LatencyFigures]: ...

    @property
    def rates(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """`quantity` and `quantile` of a latency in ms, else a share of 1 or a rate. `above`: it has to be above
    the limit, else below. `source`: it is of the calls of that source; "" is of all."""

    text: str
    quantity: str
    limit: float
    quantile: str = ""
    above: bool = False
    source: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "ttft_p99<300ms", "chats:ttft_p99<300ms" and the like. Raises ValueError, which says what is
        possible."""
        if match := OF_SOURCE.fullmatch(text):
            return replace(cls._read_unnamed(match[2], text), source=match[1])
        return cls._read_unnamed(text, text)

    @classmethod
    def _read_unnamed(cls, words: str, text: str) -> Self:
        try:
            if match := LATENCY.fullmatch(words):
                quantity, quantile, limit, unit = match.groups()
                return cls(text, quantity, float(limit) * (1e3 if unit == "s" else 1.0), quantile)
            if match := SHARE.fullmatch(words):
                return cls(text, match[1], float(match[2]) / 100)
            if match := RATE.fullmatch(words):
                return cls(text, match[1], float(match[2]), above=True)
        except ValueError:
            pass  # as "1.2.3": it is said below
        raise ValueError(f"{text!r} is no objective: write {FORMS}")

    def kept_by(self, record: CallRecord) -> bool:
        """Whether one call keeps it; what is of loads alone, or of another source, every call keeps.

        A call with one delivery has no gaps, and keeps what is asked of them.
        """
        if not self.quantile or self.quantity == "job" or self.source not in ("", record.source):
            return True
        if self.quantity == "itl":
            gaps = np.sort(np.asarray(record.gaps_s)) * 1e3
            return not len(gaps) or sorted_quantile(gaps, SHARES[self.quantile]) < self.limit
        value = OF_CALLS[self.quantity](record) * 1e3
        return value < self.limit or (self.quantity == "tpot" and math.isnan(value))


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """`sure`: the whole interval of what was measured is on the same side of the limit."""

    text: str
    measured: float
    kept: bool
    sure: bool


def is_good(record: CallRecord, levels: Sequence[ServiceLevel]) -> bool:
    return record.finished and all(level.kept_by(record) for level in levels)


def judge(
    levels: Sequence[ServiceLevel],
    latencies: Mapping[str, LatencyFigures],
    rates: Mapping[str, float],
    sources: Mapping[str, MeasuredFigures] = MappingProxyType({}),
) -> list[LevelVerdict]:
    """Return whether a load keeps each: by the value that was measured, and how sure that is.

    A source of which no call counts keeps nothing.
    """
    found = []
    for level in levels:
        if not level.source:
            found.append(_verdict(level, latencies, rates))
        elif level.source in sources:
            figures = sources[level.source]
            found.append(_verdict(level, figures.latencies, figures.rates))
        else:
            found.append(LevelVerdict(level.text, math.nan, kept=False, sure=False))
    return found


def _verdict(
    level: ServiceLevel, latencies: Mapping[str, LatencyFigures], rates: Mapping[str, float]
) -> LevelVerdict:
    if level.quantile:
        figure = latencies[level.quantity].quantiles[level.quantile]
        kept = figure.value < level.limit
        sure = figure.high < level.limit if kept else figure.low >= level.limit
        return LevelVerdict(level.text, figure.value, kept, sure)
    value = rates[level.quantity]
    kept = value > level.limit if level.above else value < level.limit
    return LevelVerdict(level.text, value, kept, sure=True)
