"""Remember what asking a draft head has brought: tokens that were right, verified and computed."""

from __future__ import annotations

from dataclasses import dataclass

_LEARNING = 0.1  # the least weight of one time of asking
_MEASURED = 0.3  # the part of what is learned that was seen, and not expected
_FIRST_TIMES = 2.0  # that nothing is known weighs as much as so many times of asking
_INHERITED_TIMES = 3.0  # and what others have shown, for a new sequence, as much as so many


@dataclass(slots=True)
class HeadRecord:
    """Means per time of asking, which fade. It begins without hope: a head is tried, not trusted."""

    right: float = 0.0
    verified: float = 1.0
    computed: float = 1.0
    times: float = _FIRST_TIMES

    def gain(self, price: float, head_price: float) -> float:
        """Return the steps that asking saves beyond its cost, in steps of the sequence: a verified token
        costs `price`, one that the head computes `head_price`."""
        return self.right - price * self.verified - head_price * self.computed

    def learn(self, hoped: float, right: int, verified: int, computed: int) -> None:
        """Take in one more time of asking, which weighs more among few: tokens that were expected to be
        right, which says more from time to time, and those that were, which is true in the long run."""
        self.times += 1
        weight = max(_LEARNING, 1 / self.times)
        self.right += weight * (hoped + _MEASURED * (right - hoped) - self.right)
        self.verified += weight * (verified - self.verified)
        self.computed += weight * (computed - self.computed)

    def inherited(self) -> HeadRecord:
        """Return what a new sequence begins with."""
        return HeadRecord(self.right, self.verified, self.computed, _INHERITED_TIMES)
