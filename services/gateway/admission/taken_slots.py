"""Know how many slots each tenant has by this gateway, and which may have more than there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from services.gateway.fleet.tenant_jobs import TenantStanding
from shared.fairness.share import TenantShare
from shared.messages import Held


class TakenSlots:
    """The slots that each tenant has by this gateway, beside what decode workers say of all gateways.

    Decode workers take guests beyond their slots. Those places are for tenants that have less than another:
    one that sends a request now and then finds a place at once instead of waiting for the end of another's.
    Who is alone, or has as much as any other, waits for a slot.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, tenant: str) -> None:
        self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def held(self) -> Iterator[Held]:
        """Yield what each tenant has, for an audit."""
        for tenant, count in self._taken.items():
            yield Held("", "slot", count, tenant)

    def may_be_guest(self, share: TenantShare, told: TenantStanding, more: int = 1) -> bool:
        """Return whether the tenant, with so many `more` slots, has no more by its weight than another has,
        as it was `told`."""
        had = max(self._taken[share.tenant], told.jobs)
        return (had + more) / share.weight <= told.most_of_others
