"""The latencies of requests that were played, and how many of them kept objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from services.cli.bench.report.latency_figures import SHARES, LatencyFigures, QuantileFigure
from services.cli.bench.report.service_level import ServiceLevel
from services.cli.bench.stats.quantiles import Floats, sorted_quantile
from services.cli.capacity.pipeline.played_request import PlayedRequest


@dataclass(frozen=True, slots=True)
class PlayedFigures:
    """`good` requests kept all objectives of latency themselves, as `penstock bench serve` counts them."""

    latencies: dict[str, LatencyFigures]
    good: int

    @classmethod
    def of(cls, requests: Sequence[PlayedRequest], levels: Sequence[ServiceLevel]) -> Self:
        gaps_s = [request.gaps_s() for request in requests]
        values_s = {
            "ttft": np.array([request.ttft_s for request in requests]),
            "tpot": np.array([request.tpot_s for request in requests]),
            "e2e": np.array([request.e2e_s for request in requests]),
        }
        good = np.ones(len(requests), dtype=np.bool_)
        for level in levels:
            if level.quantity == "itl":
                good &= [_is_kept(level, gaps) for gaps in gaps_s]
            elif level.quantile:
                values_ms = values_s[level.quantity] * 1e3
                good &= (values_ms < level.limit) | np.isnan(values_ms)
        latencies = {name: figures_of_played(values) for name, values in values_s.items()}
        latencies["itl"] = figures_of_played(np.concatenate(gaps_s))
        return cls(latencies, int(good.sum()))


def figures_of_played(values_s: Floats) -> LatencyFigures:
    """Return the figures of these values without those that are nan; what is played is exact."""
    known = np.sort(values_s[~np.isnan(values_s)]) * 1e3
    quantiles = {name: exactly(sorted_quantile(known, share)) for name, share in SHARES.items()}
    return LatencyFigures(len(known), float(known.mean()) if len(known) else math.nan, quantiles)


def exactly(value: float) -> QuantileFigure:
    return QuantileFigure(value, value, value)


def _is_kept(level: ServiceLevel, gaps_s: Floats) -> bool:
    """Whether one request's gaps keep an objective of theirs; one without any does."""
    return not len(gaps_s) or sorted_quantile(np.sort(gaps_s), SHARES[level.quantile]) * 1e3 < level.limit
