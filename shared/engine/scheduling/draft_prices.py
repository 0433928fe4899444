"""The price of verifying a drafted token, in steps of its sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shared.engine.cost_model import CostModel, Features

HIGHEST_PRICE = 0.95
"""Nobody drafts where a verified token costs more of what a right one saves: there is nothing to win."""
LOWEST_PRICE = 0.03
"""The least that a verified token is taken to cost: rows of steps without drafts say little about it."""


class DraftPrices(NamedTuple):
    """`share_us`: the time of a sequence in a step of `step_us`, which is what a right token saves."""

    step_us: float
    share_us: float
    row: float  # of a row, in such shares
    key: float  # of a key that it reads

    @classmethod
    def of(
        cls, cost: CostModel, others: Features, row_us: Callable[[int, float], float] | None = None
    ) -> DraftPrices | None:
        """Return those of a step that computes `others`, one row of each sequence; None where there is no
        sequence, or nothing is known yet. `row_us`: knows better what a row costs beside so many sequences
        than what it is given, which the cost model believes."""
        if not others.sequences:
            return None
        a, b, c, d = cost.last_coefficients()  # b is 0 where c has all of it: one row of each were seen
        step_us = a + b * others.tokens + c * others.sequences + d * others.keys
        if step_us <= 0:
            return None
        share_us = step_us / others.sequences
        more_us = b or c
        if row_us is not None:
            more_us = row_us(others.sequences, more_us)
        return cls(step_us, share_us, max(LOWEST_PRICE, more_us / share_us), d / share_us)

    def of_token(self, num_computed: int) -> float:
        """Return the price of a token behind so many."""
        return self.row + self.key * num_computed

    @property
    def sequences(self) -> float:
        """Return how many the step is of."""
        return self.step_us / self.share_us
