"""Predict how long a step takes, learned from the steps that were taken. No torch, no clock."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MEMORY = 0.99
"""Weight of the past at each observation: the last hundred or so steps decide."""
MIN_OBSERVATIONS = 8
"""Nothing is predicted before this many steps: the first ones warm caches and say little."""
EXTRAPOLATION = 4
"""Predictions are vouched for up to steps of so many times the tokens of the largest one seen."""
_HOLD = 1e-4 * np.array((1.0, 1.0, 10.0, 10.0))
"""The firmness with which each coefficient stays where it was (0 at first) when recent steps say nothing
about it. Keys are held firmly: that attention is costly must be seen, it would be multiplied by long
prompts. So are sequences: while each has one row, what they cost is taken for the price of rows, so that
nobody drafts by the hope that another row is cheaper than the first."""
_FIT_EVERY = 16
"""Coefficients are computed at least so often, so that the past is in them before it has faded."""
_FIRST_FITS = 32
"""The steps at first that are each followed at once, as are those of more sequences than there ever were:
by what prompts alone have shown drafts would be long, and dear."""

Array = NDArray[np.float64]


class Features(NamedTuple):
    """The work of a step: rows in all, sequences they belong to, keys read by all rows together."""

    tokens: int
    sequences: int
    keys: int

    def plus(self, other: Features) -> Features:
        return Features(*(mine + its for mine, its in zip(self, other, strict=True)))


NOTHING = Features(0, 0, 0)


def span_features(start: int, num_tokens: int) -> Features:
    """Tokens [start, start + num_tokens) of one sequence: each row reads every key up to itself."""
    return Features(num_tokens, 1, num_tokens * start + num_tokens * (num_tokens + 1) // 2)


class CostModel:
    """step_us = a + b * tokens + c * sequences + d * keys, none of them negative.

    Least squares of the error relative to what was observed: a step twice as long may be wrong by twice as
    much, and a step that was slow by accident hardly counts. The past fades with MEMORY; what recent steps
    do not show (say, prefill during hours of decode) stays as it was last known.

    Learned from the time that steps compute, and how much longer they take where others compute, too, beside
    that: a step that was held up would say wrong things of what was in it.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._chunk_tokens = max_batch_tokens
        # Lists: a step is observed in a fifth of the time that arrays of so few numbers take.
        self._products = [0.0] * 16  # faded sum of x xᵀ, row by row, x = features / observed time
        self._sums = [0.0] * 4  # faded sum of x
        self._scale = [0.0] * 4  # plain mean of x², so that each coefficient is held in its own unit
        self._coefficients = [0.0] * 4
        self._observations = 0
        self._most_tokens = 0
        self._most_sequences = 0
        self._stale = False
        self._computing = self._squared = 0.0  # faded sums of the part of steps that they computed
        self._stretch = 1.0

    @property
    def ready(self) -> bool:
        return self._observations >= MIN_OBSERVATIONS

    def observe(self, features: Features, us: float, computing_us: float = 0.0) -> None:
        """A step with `features` took `us`, of which it computed `computing_us`; 0: all."""
        if us <= 0 or features.tokens <= 0:
            return
        part = min(1.0, computing_us / us) if computing_us > 0 else 1.0
        self._computing = MEMORY * self._computing + part
        self._squared = MEMORY * self._squared + part * part
        self._stretch = self._computing / self._squared
        computed_us = part * us
        row = [1.0 / computed_us, *(feature / computed_us for feature in features)]
        outer = [mine * its for mine in row for its in row]
        self._products = [MEMORY * past + now for past, now in zip(self._products, outer, strict=True)]
        self._sums = [MEMORY * past + now for past, now in zip(self._sums, row, strict=True)]
        self._observations += 1
        self._most_tokens = max(self._most_tokens, features.tokens)
        self._scale = [
            mean + (each * each - mean) / self._observations
            for mean, each in zip(self._scale, row, strict=True)
        ]
        self._stale = True
        is_new = features.sequences > self._most_sequences
        self._most_sequences = max(self._most_sequences, features.sequences)
        if self.ready and (
            is_new or self._observations % _FIT_EVERY == 0 or self._observations < _FIRST_FITS
        ):
            self._fit()

    def coefficients(self) -> tuple[float, float, float, float]:
        """us per step, token, sequence and key read."""
        if self._stale:
            self._fit()
        a, b, c, d = (self._stretch * each for each in self._coefficients)
        return a, b, c, d

    def last_coefficients(self) -> tuple[float, float, float, float]:
        """The same of the time that steps compute alone, as of at most _FIT_EVERY steps ago, zeros while not
        ready: for what is asked at every step, where to fit would take longer than the answer is worth."""
        a, b, c, d = self._coefficients
        return a, b, c, d

    def predict_us(self, features: Features) -> float:
        """0 while not ready."""
        if not self.ready:
            return 0.0
        a, b, c, d = self.coefficients()
        return a + b * features.tokens + c * features.sequences + d * features.keys

    def vouches_for(self, prompt_tokens: int) -> bool:
        """Return whether steps like those of this prompt were seen. From decode steps and short prompts
        alone, what
        a step costs cannot be told from what its tokens cost, and a long prompt would multiply the error."""
        largest_step = min(prompt_tokens, self._chunk_tokens)
        return self.ready and largest_step <= EXTRAPOLATION * self._most_tokens

    def span_us(self, start: int, num_tokens: int) -> float:
        """Return what tokens [start, start + num_tokens) of one sequence cost beyond the steps that they are
        in."""
        _, b, _, d = self.coefficients()
        return b * num_tokens + d * span_features(start, num_tokens).keys

    def max_prefill_tokens(self, budget_us: float, others: Features, start: int) -> int:
        """The longest chunk from position `start` that keeps a step with `others` within `budget_us`.

        0 when not even one token does. Call only when ready.
        """
        _, b, c, d = self.coefficients()
        left = budget_us - self.predict_us(others) - c
        # left = linear * n + square * n²
        linear, square = b + d * (start + 0.5), d / 2
        if left <= 0:
            return 0
        if square * left * 4 <= 1e-12 * linear * linear:  # n² does not matter, and would divide by nothing
            return self._chunk_tokens if linear * self._chunk_tokens <= left else int(left / linear)
        tokens = (math.sqrt(linear * linear + 4 * square * left) - linear) / (2 * square)
        return int(min(tokens, self._chunk_tokens))

    def prefill_us(self, num_tokens: int, cached: int = 0) -> float:
        """Computing tokens [cached, num_tokens) of one prompt alone, in chunks; 0 while not ready."""
        if not self.ready or num_tokens <= cached:
            return 0.0
        a, _, c, _ = self.coefficients()
        tokens = num_tokens - cached
        steps = -(-tokens // self._chunk_tokens)
        return steps * (a + c) + self.span_us(cached, tokens)

    def _fit(self) -> None:
        """Solve for all coefficients, then without those that came out negative, until none is."""
        hold = np.diag(_HOLD * self._scale + 1e-300)
        products = np.array(self._products).reshape(4, 4) + hold
        sums = self._sums + hold @ self._coefficients
        unit = 1 / np.sqrt(
            products.diagonal()
        )  # coefficients differ by a factor of a million: solve in units
        free = [0, 1, 2, 3]
        while free:
            place = np.ix_(free, free)
            units = unit[free]
            solved: Array = units * np.linalg.solve(
                products[place] * np.outer(units, units), sums[free] * units
            )
            if (solved >= 0).all():
                break
            free.pop(int(np.argmin(solved / units)))
        found = np.zeros(4)
        found[free] = solved
        self._coefficients = found.tolist()
        self._stale = False
