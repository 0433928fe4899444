"""The side-by-side benchmark's figures as Markdown, ready for the README."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

OURS = "penstock"


@dataclass(frozen=True, slots=True)
class Series:
    """Tokens per second of one engine at one precision, by column, one for each round."""

    name: str
    engine: str
    precision: str
    version: str
    peak_rss_mb: float
    rates: dict[str, list[float]]


def markdown(shape: str, columns: list[str], series: list[Series]) -> str:
    """A row for each engine: the best round, its median in parentheses; and for each precision of ours a row
    with our share of the best peer's, where there is a peer at that precision."""
    head = [f"{shape}, tokens/s: best (median)", *columns, "peak MB"]
    rows = [
        [one.name, *(_rate(one.rates.get(column, [])) for column in columns), _peak(one)] for one in series
    ]
    for ours in (one for one in series if one.engine == OURS):
        peers = [one for one in series if one.engine != OURS and one.precision == ours.precision]
        if peers:
            ratios = [_ratio(ours, peers, column) for column in columns]
            rows.append([f"**{ours.name} / best peer**", *ratios, ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _rate(rates: list[float]) -> str:
    return f"{_short(max(rates))} ({_short(statistics.median(rates))})" if rates else "-"


def _peak(one: Series) -> str:
    return f"{one.peak_rss_mb:.0f}" if one.peak_rss_mb else "-"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ours: Series, peers: list[Series], column: str) -> str:
    """Of the best rounds, and of the medians; names the peer that was best."""
    measured = [peer for peer in peers if peer.rates.get(column)]
    if not measured or not ours.rates.get(column):
        return "-"
    best = max(measured, key=lambda peer: max(peer.rates[column]))
    strongest_median = max(statistics.median(peer.rates[column]) for peer in measured)
    ratio = max(ours.rates[column]) / max(best.rates[column])
    return f"**{ratio:.2f}** ({statistics.median(ours.rates[column]) / strongest_median:.2f}) {best.engine}"
