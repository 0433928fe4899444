"""Know whose the blocks are that are held or that a name finds, and which to evict: each tenant its own.

When room is needed, the tenant that has most blocks for its weight, the newcomer counted with what it takes,
gives up what it used least lately. So of N tenants of equal weight one that has at most an N-th part of the
pool loses nothing while another has a block that nobody holds; and one whom nobody else presses has all.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from shared.fairness.share import OPEN_SHARE, TenantShare

_STALE_PER_TENANT = 4
"""Entries of the order that are out of date, for each tenant, before it is made anew."""


@dataclass(slots=True)
class _Holding:
    """The blocks of one tenant: how many there are, and those that rest, the oldest first."""

    weight: int = 1
    num_blocks: int = 0
    resting: OrderedDict[int, None] = field(default_factory=OrderedDict)

    @property
    def part(self) -> float:
        """Return what it has, for its weight."""
        return self.num_blocks / self.weight


class TenantBlocks:
    """The blocks of a pool that are not blank; they rest when nobody holds them. A block is its tenant's that
    took it or, where that was nobody's, as for a prefix that was warmed, that of whoever holds it next."""

    def __init__(self) -> None:
        self._tenant_of: dict[int, str] = {}
        self._holdings: dict[str, _Holding] = {}
        self._order: list[tuple[float, str]] = []  # a heap of (-part, tenant), with entries out of date
        self._num_resting = 0

    def __len__(self) -> int:
        return self._num_resting

    def __contains__(self, block: int) -> bool:
        tenant = self._tenant_of.get(block)
        return tenant is not None and block in self._holdings[tenant].resting

    def is_owned(self, block: int) -> bool:
        """Return whether the block is anybody's."""
        return block in self._tenant_of

    def num_of(self, tenant: str) -> int:
        """Return how many blocks are the tenant's."""
        holding = self._holdings.get(tenant)
        return 0 if holding is None else holding.num_blocks

    def take(self, block: int, share: TenantShare) -> None:
        """Somebody holds a block that was blank."""
        holding = self._holdings.setdefault(share.tenant, _Holding())
        holding.weight = share.weight
        holding.num_blocks += 1
        self._tenant_of[block] = share.tenant
        self._reorder(share.tenant, holding)

    def give_back(self, block: int) -> None:
        """A block that was held is blank again, or is to be another one's."""
        tenant = self._tenant_of.pop(block)
        holding = self._holdings[tenant]
        holding.num_blocks -= 1
        if holding.num_blocks:
            self._reorder(tenant, holding)
        else:
            del self._holdings[tenant]

    def rest(self, block: int) -> None:
        """Nobody holds a block any more that has a name."""
        tenant = self._tenant_of[block]
        holding = self._holdings[tenant]
        holding.resting[block] = None
        self._num_resting += 1
        if len(holding.resting) == 1:
            self._reorder(tenant, holding)

    def hold(self, block: int, share: TenantShare) -> None:
        """Somebody holds a block again that rested."""
        tenant = self._tenant_of[block]
        del self._holdings[tenant].resting[block]
        self._num_resting -= 1
        if tenant == OPEN_SHARE.tenant != share.tenant:
            self.give_back(block)
            self.take(block, share)

    def evict(self, share: TenantShare) -> int:
        """Return a block that rested, for a tenant that takes one more; it is nobody's. There is one."""
        loser = self._holdings[self._largest()]
        own = self._holdings.get(share.tenant)
        if own is not None and own.resting and (own.num_blocks + 1) / own.weight >= loser.part:
            loser = own
        block, _ = loser.resting.popitem(last=False)
        self._num_resting -= 1
        self.give_back(block)
        return block

    def _largest(self) -> str:
        """Return the tenant that has most, of those that have a block that rests."""
        while True:
            part, tenant = self._order[0]
            holding = self._holdings.get(tenant)
            if holding is not None and holding.resting and part == -holding.part:
                return tenant
            heapq.heappop(self._order)

    def _reorder(self, tenant: str, holding: _Holding) -> None:
        """A tenant has more or less than it had. Who has nothing to give up need not stand in the order."""
        if not holding.resting:
            return
        heapq.heappush(self._order, (-holding.part, tenant))
        if len(self._order) > _STALE_PER_TENANT * (len(self._holdings) + 1):
            self._order = [(-each.part, name) for name, each in self._holdings.items() if each.resting]
            heapq.heapify(self._order)
