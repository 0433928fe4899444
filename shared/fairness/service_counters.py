"""Count the service that each tenant has had, in order to serve next the one that has had least."""

from __future__ import annotations

from dataclasses import dataclass

from shared.fairness.recent_service import RecentService
from shared.fairness.share import TenantShare

MAX_TENANTS = 4096
"""The tenants that are remembered; beyond, those that want nothing and owe least are forgotten first."""
MAX_CREDIT = float(1 << 18)
"""The most that a tenant can be behind the one that has had most, in computed tokens. Who wants less than its
part falls behind for as long as it does; without an end to that it could some day take all for as long."""

Standing = tuple[float, float]
"""The least goes first: the least weighted service, then the least of what was had lately."""


@dataclass(slots=True)
class _Tenant:
    counter: float
    wants: int = 0


class ServiceCounters:
    """The counters of one place where tenants meet: a queue, or an engine.

    A tenant is active there while it wants something. One that becomes active is lifted to the least of those
    that are: idling saves nothing up. When nobody is active all is forgotten: what was used while there was
    enough is owed to nobody. Only what was had lately is remembered, which decides among equals: a tenant
    that wants little goes before one that wants much wherever both stand alike. `period` numbers the times
    between: what was charged in an earlier one is not given back.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._active: dict[str, _Tenant] = {}
        self._highest = 0.0
        self._recent = RecentService(MAX_TENANTS)
        self.period = 0

    @property
    def alone(self) -> bool:
        """Whether at most one tenant is known: then there is nothing to count and nobody to choose."""
        return len(self._tenants) < 2

    def join(self, tenant: str) -> None:
        """The tenant wants one more request served here."""
        if not self._active:
            self._tenants.clear()
            self._highest = 0.0
            self.period += 1
        known = self._active.get(tenant)
        if known is None:
            level = self.level(tenant)
            known = self._active[tenant] = self._known(tenant)
            known.counter = level
        known.wants += 1

    def leave(self, tenant: str) -> None:
        """One request of those that the tenant wanted served here is over, or has had its turn."""
        known = self._active[tenant]
        known.wants -= 1
        if not known.wants:
            del self._active[tenant]

    def charge(self, share: TenantShare, cost: float) -> None:
        """The tenant was served; a negative cost is given back."""
        known = self._tenants.get(share.tenant) or self._known(share.tenant)
        least = self._highest - MAX_CREDIT
        weighted = cost / share.weight
        known.counter = counter = max(known.counter, least) + weighted
        self._highest = max(self._highest, counter)
        if cost > 0:  # who has given a turn back has had it all the same, and is not the next one for it
            self._recent.add(share.tenant, weighted)

    def level(self, tenant: str) -> float:
        """Return the counter with which the tenant would be active, or is."""
        known = self._tenants.get(tenant)
        counter = 0.0 if known is None else known.counter
        if tenant in self._active:
            return counter
        return max(counter, min((each.counter for each in self._active.values()), default=0.0))

    def standing(self, tenant: str) -> Standing:
        """Return where a tenant stands: the least goes first."""
        known = self._tenants.get(tenant)
        return 0.0 if known is None else known.counter, self._recent.of(tenant)

    def _known(self, tenant: str) -> _Tenant:
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._forget_idle()
            known = self._tenants[tenant] = _Tenant(0.0)
        return known

    def _forget_idle(self) -> None:
        """Keep those who are active, and of the others the half that owes most: rarely, so that it is
        cheap."""
        idle = [name for name in self._tenants if name not in self._active]
        idle.sort(key=lambda name: self._tenants[name].counter)
        for name in idle[: (len(idle) + 1) // 2]:
            del self._tenants[name]
