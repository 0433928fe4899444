"""What asking a draft head has brought lately: tokens that were right, verified and computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HeadRecord:
    """Fading means per time of asking. It begins with hope, so that a head is tried."""

    right: float = 1.0
    verified: float = 2.0
    computed: float = 2.0

    def gain(self, price: float, head_price: float) -> float:
        """Return the steps that asking saves beyond its cost, in steps of the sequence: a verified token
        costs `price`, one that the head computes `head_price`."""
        return self.right - price * self.verified - head_price * self.computed

    def learn(self, weight: float, right: float, verified: float, computed: float) -> None:
        self.right += weight * (right - self.right)
        self.verified += weight * (verified - self.verified)
        self.computed += weight * (computed - self.computed)

    def copy(self) -> HeadRecord:
        return HeadRecord(self.right, self.verified, self.computed)
