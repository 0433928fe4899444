"""Know how many slots each tenant has, and which of them may have more than there are ordinary ones."""

from __future__ import annotations

from collections import Counter

from shared.fairness.share import TenantShare


class TakenSlots:
    """The slots that each tenant has by this gateway.

    Decode workers take guests beyond their slots. Those places are for tenants that have less than their
    equal part, by weight, of all slots: one that sends a request now and then finds a place at once instead
    of waiting for the end of another's. Who is alone, or has its part, waits for a slot.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._weights: dict[str, int] = {}  # of those that have some

    def take(self, share: TenantShare) -> None:
        self._taken[share.tenant] += 1
        self._weights[share.tenant] = share.weight

    def give_back(self, share: TenantShare) -> None:
        self._taken[share.tenant] -= 1
        if not self._taken[share.tenant]:
            del self._taken[share.tenant]
            del self._weights[share.tenant]

    def may_be_guest(self, share: TenantShare, capacity: int) -> bool:
        """Return whether the tenant has less than its part of `capacity` slots; one always has a part of
        one, unless it is alone."""
        others = sum(weight for tenant, weight in self._weights.items() if tenant != share.tenant)
        if not others:
            return False
        part = max(1, capacity * share.weight // (share.weight + others))
        return self._taken[share.tenant] < part
