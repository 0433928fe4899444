"""Know how long clients usually allow for a first token: one voice for each tenant, whatever it sends."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from cachetools import LRUCache

from shared.deadline import SYSTEM_CLOCK, Clock

BUDGETS_REMEMBERED = 64
"""The last requests of a tenant whose budgets count."""
MAX_TENANTS = 1024
"""The tenants that are remembered; the one that was silent for longest is forgotten first."""
BUDGET_AGE_S = 60.0
"""A tenant that sent nothing for so long has no voice."""
LEAST_BUDGET_S = 0.5
"""A shorter budget counts as this: nobody has it from a fleet like this one, and it would make any wait a
crisis for all."""


class UsualBudget:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._tenants: LRUCache[str, _Budgets] = LRUCache(MAX_TENANTS)

    def record(self, tenant: str, budget_s: float) -> None:
        """A request of `tenant` was taken."""
        budgets = self._tenants.get(tenant)
        if budgets is None:
            budgets = self._tenants[tenant] = _Budgets()
        budgets.lengths_s.append(max(LEAST_BUDGET_S, budget_s))
        budgets.median_s = statistics.median(budgets.lengths_s)
        budgets.heard_s = self._clock.monotonic_s()

    def usual_s(self) -> float:
        """Return the median over tenants of the median of each, the higher of two; 0 when none was heard."""
        since_s = self._clock.monotonic_s() - BUDGET_AGE_S
        medians = [each.median_s for each in self._tenants.values() if each.heard_s >= since_s]
        return statistics.median_high(medians) if medians else 0.0


@dataclass(slots=True)
class _Budgets:
    """The last ones of a tenant, and when it was heard."""

    lengths_s: deque[float] = field(default_factory=lambda: deque(maxlen=BUDGETS_REMEMBERED))
    median_s: float = 0.0
    heard_s: float = 0.0
