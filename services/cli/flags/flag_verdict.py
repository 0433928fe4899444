"""Compare the requests that have a change with those that might have it and have not. Pure.

The time since the change is cut into slices with as many requests that have it in each; the medians of both
sides in a slice are a pair, so that a load that rises or falls on the way speaks for neither. What is said of
the pairs is what `penstock bench ab` says of its own.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.cli.bench.stats.bootstrap import LEAST_PAIRS
from services.cli.bench.stats.comparison import PairComparison, compare_pairs
from shared.flags.flag_match import is_for
from shared.flags.guard import FAILED_OUTCOMES, TOTAL, TTFT
from shared.messages import FlagChange, FlagTrafficRow

LEAST_IN_SLICE = 3
"""The fewest requests of a side whose median counts."""
MOST_PAIRS = 40
SEED = 0


@dataclass(frozen=True, slots=True)
class FlagVerdict:
    """`comparison` is None where there are too few requests for one. The counts are of all requests of a
    side, and of those that failed."""

    comparison: PairComparison | None
    requests: tuple[int, int]
    failed: tuple[int, int]


def flag_verdict(change: FlagChange, rows: Iterable[FlagTrafficRow], metric: str) -> FlagVerdict:
    """Return what is known of a change: A are those without it, B those with it."""
    asked = [
        row
        for row in sorted(rows, key=lambda each: each.began_unix_us)
        if row.began_unix_us >= change.made_unix_us and is_for(change, row.tenant, row.model)
    ]
    with_it = [row for row in asked if change.version in row.flags]
    without = [row for row in asked if change.version not in row.flags]
    pairs = _pairs(_timed(without, metric), _timed(with_it, metric))
    comparison = None
    if len(pairs) >= LEAST_PAIRS:
        comparison = compare_pairs([a for a, _ in pairs], [b for _, b in pairs], 1, SEED)
    return FlagVerdict(comparison, (len(without), len(with_it)), (_failed(without), _failed(with_it)))


def flag_verdict_words(verdict: FlagVerdict, change: FlagChange, metric: str) -> list[str]:
    (without, with_it), (failed, failed_with) = verdict.requests, verdict.failed
    sides = (
        f"A: {without} requests without {change.version}, {failed} failed; "
        f"B: {with_it} with it, {failed_with} failed"
    )
    if verdict.comparison is not None:
        return [sides, verdict.comparison.verdict(metric, lower_is_better=True)]
    if not without and change.share >= 1:
        return [sides, "everybody has it, so that there is nobody to compare with: set it for a --share"]
    least = LEAST_PAIRS * LEAST_IN_SLICE
    return [sides, f"too few for a verdict: it takes about {least} answered requests of each side"]


def _failed(rows: Sequence[FlagTrafficRow]) -> int:
    return sum(row.outcome in FAILED_OUTCOMES for row in rows)


def _timed(rows: Sequence[FlagTrafficRow], metric: str) -> list[tuple[int, float]]:
    """Return when each request began that has the metric, and its value in milliseconds."""
    found = []
    for row in rows:
        if row.outcome != "finished" or not row.ttft_us:
            continue
        if metric == TTFT:
            value = row.ttft_us / 1000
        elif metric == TOTAL:
            value = row.total_us / 1000
        elif row.output_tokens > 1:
            value = (row.total_us - row.ttft_us) / 1000 / (row.output_tokens - 1)
        else:
            continue
        if value > 0:
            found.append((row.began_unix_us, value))
    return found


def _pairs(
    without: Sequence[tuple[int, float]], with_it: Sequence[tuple[int, float]]
) -> list[tuple[float, float]]:
    """Return the medians of both sides in each slice in which there are enough of both."""
    slices = min(len(without), len(with_it)) // LEAST_IN_SLICE
    slices = min(MOST_PAIRS, slices)
    if not slices:
        return []
    bounds = [len(with_it) * number // slices for number in range(slices + 1)]
    times = [began for began, _ in without]
    found = []
    for number, (first, last) in enumerate(pairwise(bounds)):
        start = 0 if number == 0 else bisect_left(times, with_it[first][0])
        end = len(times) if number == slices - 1 else bisect_left(times, with_it[last][0])
        if end - start >= LEAST_IN_SLICE:
            a = statistics.median(value for _, value in without[start:end])
            found.append((a, statistics.median(value for _, value in with_it[first:last])))
    return found
