"""Compare a prediction with what `penstock bench serve --json` measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from services.cli.bench.plan.arrivals import MAX_VARIATION, seeded_arrivals
from services.cli.capacity.prediction import Prediction
from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded

MAX_MEASURED_BYTES = 256 << 20
"""The largest file of a measured load."""
COMPARED = {
    "ttft": ("p50", "p99"),
    "itl": ("p50", "p99"),
    "tpot": ("p50", "p99"),
    "e2e": ("p50", "p99"),
}
MOST_FIGURE = 1e15
COMPARED_RATES = ("goodput", "output_tokens_per_s")
RATE_APART = 0.05
"""The offered rates may differ by this share before a note says so."""
MAX_TIMES = 20_000
"""The most arrivals of a measured load that are made again."""
CACHED_APART = 0.05
"""The shares of prompts that are found may differ by so much before a note says so."""


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """`error` is predicted over measured, less one."""

    figure: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else math.nan


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """Figures of a load by their names, as `ttft_p99`, in ms and a second; and the rate that was offered.
    `cut`: somebody ended it before its time. `cached_share` of the prompts was found; None: not said.
    `times_s` is when its requests came, from its own beginning on; (): not known."""

    figures: dict[str, float]
    rate: float | None
    cut: bool = False
    cached_share: float | None = None
    times_s: tuple[float, ...] = ()

    @classmethod
    def read(cls, path: Path) -> MeasuredFile:
        """Raises InvalidRequest, which names what is missing."""
        document = _document(path)
        summary = _inner(path, document, "summary", "")
        latencies = _inner(path, summary, "latencies_ms", "summary.")
        rates = _inner(path, summary, "rates", "summary.")
        figures = {}
        for quantity, shares in COMPARED.items():
            where = "summary.latencies_ms."
            found = _inner(path, latencies, quantity, where)
            for share in shares:
                value = _inner(path, found, share, f"{where}{quantity}.").get("value")
                figures[f"{quantity}_{share}"] = _figure(path, f"{where}{quantity}.{share}.value", value)
        for name in COMPARED_RATES:
            figures[name] = _figure(path, f"summary.rates.{name}", rates.get(name))
        options = document.get("options")
        rate = options.get("rate") if isinstance(options, dict) else None
        known = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < MOST_FIGURE
        cut = document.get("cut_calls") is not None
        offered = float(rate) if known and rate is not None else None
        cached_share = _cached_share(summary.get("token_origins"))
        times_s = _times_s(options) if offered is not None and isinstance(options, dict) else ()
        return cls(figures, offered, cut, cached_share, times_s)

    def compare(self, prediction: Prediction) -> list[FigureComparison]:
        """Return the figures that both have."""
        rows = [
            FigureComparison(
                f"{quantity}_{share}",
                prediction.latencies[quantity].quantiles[share].value,
                self.figures[f"{quantity}_{share}"],
            )
            for quantity, shares in COMPARED.items()
            for share in shares
        ]
        rows += [
            FigureComparison(name, prediction.rates[name], self.figures[name]) for name in COMPARED_RATES
        ]
        return [row for row in rows if not math.isnan(row.measured) and not math.isnan(row.predicted)]

    def notes(self, rate: float, cached_share: float) -> list[str]:
        """Return sentences on what makes it and a prediction for such a load incomparable."""
        found = ["the measured load was cut: calls that take long are fewer"] if self.cut else []
        if self.rate is None:
            found.append("the measured load was no open loop with a rate of its own: compare one of --rate")
        elif self.times_s:
            found.append(
                "beside what was measured stand its very arrivals, played from an empty start to the end"
            )
        elif abs(self.rate / rate - 1) > RATE_APART if rate else True:
            found.append(f"the measured load was offered {self.rate:g}/s, the prediction is for {rate:g}/s")
        if self.cached_share is not None and abs(self.cached_share - cached_share) > CACHED_APART:
            found.append(
                f"{self.cached_share:.0%} of the measured prompts was found in caches, the prediction has "
                f"{cached_share:.0%}: pass --cached {self.cached_share:.2f}, or measure with other texts"
            )
        return found


def _document(path: Path) -> dict[str, Any]:
    data = read_bounded(path, MAX_MEASURED_BYTES, f"the measured load {path}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the measured load {path} is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{path} is no JSON object; name a file of `penstock bench serve --json`")
    return document


def _inner(path: Path, outer: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    value = outer.get(name)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} has no {where}{name}; name a file of `penstock bench serve --json`")
    return value


def _cached_share(origins: object) -> float | None:
    if not isinstance(origins, dict):
        return None
    match origins.get("prompt_computed"), origins.get("prompt_cached"):
        case int(computed), int(cached) if computed >= 0 and cached >= 0 and computed + cached:
            return cached / (computed + cached)
    return None


def _times_s(options: dict[str, Any]) -> tuple[float, ...]:
    """Return when the requests of an open load came: its seed makes the same times again. () where it is not
    said, and where others than these count."""
    match options:
        case {
            "rate": int() | float() as rate,
            "variation": int() | float() as variation,
            "duration": int() | float() as duration_s,
            "seed": int(seed),
            "requests": int() | None as most,
            "source": None,
            "warmup": 0 | 0.0,
        } if 0 <= variation <= MAX_VARIATION and (most is None or most > 0):
            times_s = seeded_arrivals(float(rate), float(variation), seed)
            within = takewhile(lambda at_s: at_s < duration_s, times_s)
            found = tuple(islice(within, min(MAX_TIMES + 1, most or MAX_TIMES + 1)))
            return found if len(found) <= MAX_TIMES else ()
    return ()


def _figure(path: Path, where: str, value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_FIGURE:
        raise InvalidRequest(f"{path}: {where} is {value!r:.40}; it is a number of 0 or more, or null")
    return float(value)
