"""Predict how long a prefix takes to come from another worker, by what it took before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.kv.expiring import Expiring

FIRST_ANSWER_S = 0.005
"""Taken while nothing has been fetched: the time until the blocks of a lender begin to come."""
FIRST_BYTES_PER_S = 200e6
"""The same of their speed, which NATS has on a busy host; shared memory has ten times that."""
RATED_BYTES = 1 << 20
"""Fewer bytes than this say nothing of the speed: they are there with the answer."""
MEMORY = 0.7
"""Weight of the past at each fetch."""
REMEMBERED_S = 60.0
"""The time for which measurements count, after the last fetch: a lender that was slow is tried again."""
FAILED_S = 5.0
"""The time for which nothing is fetched from a lender, after a fetch that failed."""
MAX_LENDERS = 256
"""The lenders of which something is remembered."""
_ANY = ""
"""Stands for all lenders together; none has this name."""


@dataclass(frozen=True, slots=True)
class LenderSpeed:
    """Measured and smoothed: the time until a lender's blocks begin to come, and how fast they come."""

    answer_s: float = FIRST_ANSWER_S
    bytes_per_s: float = FIRST_BYTES_PER_S

    def predicted_s(self, num_bytes: int) -> float:
        """Return how long `num_bytes` take from it."""
        return self.answer_s + num_bytes / self.bytes_per_s


class FetchPrices:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._speeds: Expiring[str, LenderSpeed] = Expiring(MAX_LENDERS + 1, REMEMBERED_S)
        self._failed: Expiring[str, bool] = Expiring(MAX_LENDERS, FAILED_S)

    def predicted_s(self, lender: str, num_bytes: int) -> float:
        """Return how long `num_bytes` take from `lender`; infinity where a fetch from it has just failed. One
        that was not asked yet is thought to be as others are."""
        self._forget()
        if self._failed.get(lender) is not None:
            return math.inf
        return (self._speeds.get(lender) or self._usual).predicted_s(num_bytes)

    def usual(self) -> LenderSpeed | None:
        """Return the speed that a lender is thought to have; None where a fetch has just failed."""
        self._forget()
        return None if len(self._failed) else self._usual

    def observe(self, lender: str, answer_s: float, num_bytes: int, transfer_s: float) -> None:
        """A fetch was answered after `answer_s`, and its bytes have come within `transfer_s` of that."""
        for each in (lender, _ANY):
            self._observe(each, answer_s, num_bytes, transfer_s)

    def _observe(self, lender: str, answer_s: float, num_bytes: int, transfer_s: float) -> None:
        before = self._speeds.get(lender)
        rated = num_bytes >= RATED_BYTES
        speed = LenderSpeed(
            answer_s if rated else answer_s + transfer_s,
            num_bytes / max(transfer_s, 1e-6) if rated else FIRST_BYTES_PER_S,
        )
        if before is not None:
            speed = LenderSpeed(
                MEMORY * before.answer_s + (1 - MEMORY) * speed.answer_s,
                MEMORY * before.bytes_per_s + (1 - MEMORY) * speed.bytes_per_s
                if rated
                else before.bytes_per_s,
            )
        self._speeds.put(lender, speed, self._clock.monotonic_s())

    def observe_failure(self, lender: str) -> None:
        """A fetch from it has failed, or took longer than computing would have."""
        self._failed.put(lender, True, self._clock.monotonic_s())

    @property
    def _usual(self) -> LenderSpeed:
        return self._speeds.get(_ANY) or LenderSpeed()

    def _forget(self) -> None:
        now_s = self._clock.monotonic_s()
        self._speeds.forget(now_s)
        self._failed.forget(now_s)
