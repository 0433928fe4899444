"""Know whose the blocks are that are held or that a name finds, and which to evict: each tenant its own.

When room is needed, the tenant that has most blocks for its weight, the newcomer counted with what it takes,
gives up what it used least lately. Blocks that somebody is expected to come back for stay longer than its
others, for so long as was said and as far as they are no more than KEPT_SHARE of the pool. So of N tenants of
equal weight one that has at most an N-th part of the pool loses nothing while another has a block that nobody
holds; and one whom nobody else presses has all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.fairness.share import OPEN_SHARE, TenantShare

KEPT_SHARE = 0.5
"""The share of the pool that may stay for those who are expected back; the rest is for whoever comes."""
_STALE_PER_TENANT = 4
"""Entries of the order that are out of date, for each tenant, before it is made anew."""


@dataclass(slots=True)
class _Holding:
    """The blocks of one tenant: how many there are, those that rest, the oldest first, and of these those
    that stay for somebody; each with the time since when it rests."""

    weight: int = 1
    num_blocks: int = 0
    resting: OrderedDict[int, float] = field(default_factory=OrderedDict)
    staying: OrderedDict[int, float] = field(default_factory=OrderedDict)

    @property
    def num_idle(self) -> int:
        """Return how many of them nobody holds."""
        return len(self.resting) + len(self.staying)

    def take_oldest(self) -> int:
        """Return the block to give up, which is idle no more: one that stays for nobody, if there is any."""
        block, _ = (self.resting or self.staying).popitem(last=False)
        return block

    @property
    def part(self) -> float:
        """Return what it has, for its weight."""
        return self.num_blocks / self.weight


class TenantBlocks:
    """The blocks of a pool that are not blank; they rest when nobody holds them. A block is its tenant's that
    took it or, where that was nobody's, as for a prefix that was warmed, that of whoever holds it next."""

    def __init__(self, num_blocks: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        """`num_blocks`: those of the pool."""
        self._clock = clock
        self._most_kept = int(KEPT_SHARE * num_blocks)
        self._kept_until_s: dict[int, float] = {}
        self._leaving: list[tuple[float, int, int]] = []
        """A heap of (until when a block stays, order, block), with entries out of date."""
        self._order_of_stays = itertools.count()
        self._tenant_of: dict[int, str] = {}
        self._holdings: dict[str, _Holding] = {}
        self._order: list[tuple[float, str]] = []  # a heap of (-part, tenant), with entries out of date
        self._num_resting = 0

    def __len__(self) -> int:
        return self._num_resting

    def __contains__(self, block: int) -> bool:
        tenant = self._tenant_of.get(block)
        if tenant is None:
            return False
        holding = self._holdings[tenant]
        return block in holding.resting or block in holding.staying

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
        self._kept_until_s.pop(block, None)
        holding = self._holdings[tenant]
        holding.num_blocks -= 1
        if holding.num_blocks:
            self._reorder(tenant, holding)
        else:
            del self._holdings[tenant]

    def rest(self, block: int, stay_s: float = 0.0) -> None:
        """Nobody holds a block any more that has a name. It stays for `stay_s`; 0: as was said of it before;
        below 0: for nobody."""
        tenant = self._tenant_of[block]
        holding = self._holdings[tenant]
        if stay_s or self._kept_until_s:
            self._keep(block, stay_s)
        idle = holding.staying if block in self._kept_until_s else holding.resting
        idle[block] = self._clock.monotonic_s()
        self._num_resting += 1
        if holding.num_idle == 1:
            self._reorder(tenant, holding)

    def hold(self, block: int, share: TenantShare) -> None:
        """Somebody holds a block again that rested."""
        tenant = self._tenant_of[block]
        holding = self._holdings[tenant]
        del (holding.staying if block in holding.staying else holding.resting)[block]
        self._num_resting -= 1
        if tenant == OPEN_SHARE.tenant != share.tenant:
            self.give_back(block)
            self.take(block, share)

    def evict(self, share: TenantShare) -> int:
        """Return a block that rested, for a tenant that takes one more; it is nobody's. There is one."""
        if self._leaving:
            self._let_go()
        loser = self._holdings[self._largest()]
        own = self._holdings.get(share.tenant)
        if own is not None and own.num_idle and (own.num_blocks + 1) / own.weight >= loser.part:
            loser = own
        block = loser.take_oldest()
        self._num_resting -= 1
        self.give_back(block)
        return block

    def next_idle_s(self, idle_s: float) -> float:
        """Return the time from which on `take_idle` may find a block that rests for `idle_s`; infinity: none
        rests."""
        rests = (next(iter(holding.resting.values()), math.inf) for holding in self._holdings.values())
        leaves = self._leaving[0][0] if self._leaving else math.inf
        return min(min(rests, default=math.inf) + idle_s, leaves)

    def take_idle(self, since_s: float, most: int) -> list[int]:
        """Return at most `most` blocks that rest since `since_s` or longer and stay for nobody, which are
        nobody's any more: each tenant's oldest ones first."""
        self._let_go()
        idle: list[int] = []
        for holding in tuple(self._holdings.values()):
            resting = holding.resting
            while len(idle) < most and next(iter(resting.values()), math.inf) <= since_s:
                block, _ = resting.popitem(last=False)
                self._num_resting -= 1
                self.give_back(block)
                idle.append(block)
        return idle

    def _keep(self, block: int, stay_s: float) -> None:
        """Note until when the block stays. One that others expect to find, too, stays for the last of
        them."""
        if stay_s < 0:
            self._kept_until_s.pop(block, None)
        elif stay_s > 0 and (block in self._kept_until_s or len(self._kept_until_s) < self._most_kept):
            until_s = max(self._kept_until_s.get(block, 0.0), self._clock.monotonic_s() + stay_s)
            self._kept_until_s[block] = until_s
            heapq.heappush(self._leaving, (until_s, next(self._order_of_stays), block))
            if len(self._leaving) > _STALE_PER_TENANT * len(self._kept_until_s):
                self._leaving = [
                    entry for entry in self._leaving if self._kept_until_s.get(entry[2]) == entry[0]
                ]
                heapq.heapify(self._leaving)

    def _let_go(self) -> None:
        """Blocks whose time has passed stay for nobody any more: they go first, as they have rested for
        longest."""
        now_s, gone = self._clock.monotonic_s(), list[int]()
        while self._leaving and self._leaving[0][0] <= now_s:
            until_s, _, block = heapq.heappop(self._leaving)
            if self._kept_until_s.get(block) == until_s:
                del self._kept_until_s[block]
                gone.append(block)
        for block in reversed(gone):
            holding = self._holdings[self._tenant_of[block]]
            if block in holding.staying:
                holding.resting[block] = holding.staying.pop(block)
                holding.resting.move_to_end(block, last=False)

    def _largest(self) -> str:
        """Return the tenant that has most, of those that have a block that rests."""
        while True:
            part, tenant = self._order[0]
            holding = self._holdings.get(tenant)
            if holding is not None and holding.num_idle and part == -holding.part:
                return tenant
            heapq.heappop(self._order)

    def _reorder(self, tenant: str, holding: _Holding) -> None:
        """A tenant has more or less than it had. Who has nothing to give up need not stand in the order."""
        if not holding.num_idle:
            return
        heapq.heappush(self._order, (-holding.part, tenant))
        if len(self._order) > _STALE_PER_TENANT * (len(self._holdings) + 1):
            self._order = [(-each.part, name) for name, each in self._holdings.items() if each.num_idle]
            heapq.heapify(self._order)
