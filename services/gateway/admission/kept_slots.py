"""Keep a few free slots for tenants that came lately and have less: who has most does not take the last."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container

from shared.deadline import Clock

KEPT_PART = 1 / 32
"""The part of the slots that is kept, of a fleet with LEAST_SLOTS or more at least one."""
LEAST_SLOTS = 8
"""A fleet with fewer slots keeps none: one would be too large a part of it."""
LATELY_S = 5.0
"""A tenant is kept a slot for so long after it has wanted one."""


class KeptSlots:
    """The slots that each tenant has by this gateway, and when tenants have wanted one.

    A tenant that sends a request now and then finds a slot at once instead of waiting for the next end. One
    that is alone, or beside others that have lines of their own, has all slots: nothing is kept from it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: Counter[str] = Counter()
        self._came_s: dict[str, float] = {}  # the one that came last is last

    def note_wanted(self, tenant: str) -> None:
        """The tenant wants a slot now."""
        now_s = self._clock.monotonic_s()
        self._came_s.pop(tenant, None)
        self._came_s[tenant] = now_s
        while self._came_s[first := next(iter(self._came_s))] < now_s - LATELY_S:
            del self._came_s[first]

    def take(self, tenant: str) -> None:
        self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def kept_from(self, tenant: str, capacity: int, waiting: Container[str]) -> int:
        """Return how many of the free slots the tenant leaves to those that came lately, have fewer slots
        and are not among the `waiting`, who have their turns."""
        if capacity < LEAST_SLOTS or len(self._came_s) < 2:
            return 0
        since_s, own = self._clock.monotonic_s() - LATELY_S, self._taken[tenant]
        for other, came_s in self._came_s.items():
            if came_s >= since_s and self._taken[other] < own and other not in waiting:
                return math.ceil(capacity * KEPT_PART)
        return 0
