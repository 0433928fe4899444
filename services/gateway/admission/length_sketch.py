"""Count how long answers were, in buckets that grow with the length, and estimate how long another one gets.

An answer that was cut, by its max_tokens or by its client, would have been longer: it tells that answers
reach that far, and nothing of where they end (the estimator of Kaplan and Meier, 1958).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

PER_DOUBLING = 4
"""The buckets from a length to twice that: a length is known to a fifth."""
DOUBLINGS = 17
EDGES = tuple(sorted({round(2 ** (step / PER_DOUBLING)) for step in range(PER_DOUBLING * DOUBLINGS + 1)}))
"""The longest length in each bucket, in tokens; what is longer than the last one is in the last one."""
MOST_SEEN = 512.0
"""The answers that a sketch counts; when there are more, all that it has counted counts half."""
MAX_MEANS = 64
"""The means that an estimate remembers, by where answers are cut."""
NOBODY = 1e-6
"""Fewer answers than so many, as they are weighed, are none."""


class LengthSketch:
    """A sketch of lengths. `ended` and `cut` are weights by bucket, of answers that ended by themselves and
    of those that were cut there; `seen` is their sum, and `added` what that would be if nothing were
    forgotten."""

    __slots__ = ("added", "cut", "ended", "seen")

    def __init__(self) -> None:
        self.ended = array("f", bytes(4 * len(EDGES)))
        self.cut = array("f", bytes(4 * len(EDGES)))
        self.seen = self.added = 0.0

    def add(self, tokens: int, *, cut: bool, weight: float = 1.0) -> None:
        """An answer has ended, or was `cut`, after so many tokens."""
        if self.seen >= MOST_SEEN:
            self._forget_half()
        (self.cut if cut else self.ended)[_bucket(tokens)] += weight
        self.seen += weight
        self.added += weight

    def beside(self, prior: LengthSketch, most: float) -> LengthSketch:
        """Return this sketch with a prior one, which counts as `most` answers at most."""
        share = min(1.0, most / prior.seen) if prior.seen else 0.0
        both = LengthSketch()
        for mine, others, sums in (
            (self.ended, prior.ended, both.ended),
            (self.cut, prior.cut, both.cut),
        ):
            for place, (own, other) in enumerate(zip(mine, others, strict=True)):
                sums[place] = own + share * other
        both.seen = self.seen + share * prior.seen
        return both

    def _forget_half(self) -> None:
        for counts in (self.ended, self.cut):
            for place, count in enumerate(counts):
                counts[place] = count / 2
        self.seen /= 2


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """The lengths that an answer may get: `longer[i]` is the probability that it gets longer than
    `EDGES[i]`."""

    longer: Sequence[float]
    _means: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, sketch: LengthSketch) -> Self:
        left, share = sum(sketch.ended) + sum(sketch.cut), 1.0
        longer: list[float] = []
        for ended, cut in zip(sketch.ended, sketch.cut, strict=True):
            if left > NOBODY:
                share *= max(0.0, 1.0 - ended / left)
            left -= ended + cut
            longer.append(share)
        return cls(tuple(longer))

    def longer_than(self, tokens: float) -> float:
        """Return the probability that it gets longer than that; within a bucket lengths are equally
        likely."""
        if tokens >= EDGES[-1]:
            return self.longer[-1]
        place = bisect_left(EDGES, tokens)
        end, below = EDGES[place], self.longer[place]
        start, above = (EDGES[place - 1], self.longer[place - 1]) if place else (0, 1.0)
        return above + (below - above) * max(0.0, tokens - start) / (end - start)

    def mean(self, most_tokens: int) -> float:
        """Return how long it gets in the mean where it is cut at `most_tokens`, at least 1."""
        mean = self._means.get(most_tokens)
        if mean is None:
            if len(self._means) >= MAX_MEANS:
                self._means.clear()
            mean = self._means[most_tokens] = self._mean(most_tokens)
        return mean

    def _mean(self, most_tokens: int) -> float:
        edges = [0, *(edge for edge in EDGES if edge < most_tokens), most_tokens]
        shares = [self.longer_than(edge) if edge else 1.0 for edge in edges]
        steps = zip(pairwise(edges), pairwise(shares), strict=True)
        return max(1.0, sum((end - start) * (one + other) / 2 for (start, end), (one, other) in steps))

    def at_most(self, share: float, most_tokens: int) -> int:
        """Return the length that so large a share of such answers does not exceed, `most_tokens` at most."""
        for edge, longer in zip(EDGES, self.longer, strict=True):
            if edge >= most_tokens:
                break
            if longer <= 1.0 - share + NOBODY:
                return edge
        return most_tokens


def _bucket(tokens: int) -> int:
    return min(bisect_left(EDGES, tokens), len(EDGES) - 1)
