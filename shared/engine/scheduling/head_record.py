"""Remember what asking a draft head brings: tokens expected to be right, verified and computed."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_TIMES = 3.0  # the hope of the beginning weighs as much as so many times of asking
_INHERITED_TIMES = 6.0  # and what others have shown, for a new sequence, as much as so many


@dataclass(slots=True)
class HeadRecord:
    """Means per time of asking, which fade. It begins with a little hope, so that a head is tried."""

    right: float = 0.5
    verified: float = 1.0
    computed: float = 1.5
    times: float = _FIRST_TIMES

    def gain(self, price: float, head_price: float) -> float:
        """Return the steps that asking saves beyond its cost, in steps of the sequence: a verified token
        costs `price`, one that the head computes `head_price`."""
        return self.right - price * self.verified - head_price * self.computed

    def learn(self, least_weight: float, right: float, verified: float, computed: float) -> None:
        """Take in one more time of asking, which weighs at least `least_weight`, and more among few."""
        self.times += 1
        weight = max(least_weight, 1 / self.times)
        self.right += weight * (right - self.right)
        self.verified += weight * (verified - self.verified)
        self.computed += weight * (computed - self.computed)

    def inherited(self) -> HeadRecord:
        """Return what a new sequence begins with."""
        return HeadRecord(self.right, self.verified, self.computed, _INHERITED_TIMES)
