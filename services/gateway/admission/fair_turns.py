"""Put tickets in the order of their turns: tenants by what they have had, each tenant's own by class, and of
a class the most urgent and the shortest by turns."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from services.gateway.admission.ticket import Ticket
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.shortest_turns import ShortestTurns


class TenantLines:
    """The lines of tenants: by class, and in a class the first by deadline and the one with the shortest
    prompt in turn."""

    def __init__(self) -> None:
        self._turns: dict[str, ShortestTurns[Ticket]] = {}

    def in_order(self, line: Sequence[Ticket], now_s: float) -> list[Ticket]:
        """Return one tenant's tickets, which are sorted by class and deadline, as their turns come."""
        turns = self._turns.get(line[0].tenant) or _level_turns()
        classes = groupby(line, key=lambda ticket: ticket.order(now_s)[0])
        return list(chain.from_iterable(turns.in_order(list(alike)) for _, alike in classes))

    def count(self, chosen: Ticket, tickets: Iterable[Ticket], now_s: float) -> None:
        """One of these tickets, which are new, has its turn; `forget` follows when it was the last."""
        order = chosen.order(now_s)
        line = [each for each in tickets if each.tenant == chosen.tenant and each.order(now_s)[0] == order[0]]
        line.sort(key=lambda ticket: ticket.order(now_s))
        turns = self._turns.setdefault(chosen.tenant, _level_turns())
        turns.count(line, [(chosen, chosen.tokens)])

    def forget(self, tenant: str) -> None:
        """Nobody of that tenant waits any more."""
        self._turns.pop(tenant, None)


def _level_turns() -> ShortestTurns[Ticket]:
    return ShortestTurns(lambda ticket: ticket.tokens)


def in_turn(
    tickets: Iterable[Ticket], counters: ServiceCounters, now_s: float, own: TenantLines
) -> list[Ticket]:
    """Return first what has started, whoever's it is, then the tenants' own lines, merged: next is always the
    first of the tenant with the least service, had and promised by what stands before in this order."""
    ordered = sorted(tickets, key=lambda ticket: ticket.order(now_s))
    merged = [ticket for ticket in ordered if not ticket.is_new]
    rest = ordered[len(merged) :]
    if not rest or counters.alone:
        return merged + (own.in_order(rest, now_s) if rest else [])
    by_tenant: dict[str, list[Ticket]] = {}
    for ticket in rest:
        by_tenant.setdefault(ticket.tenant, []).append(ticket)
    lines = {tenant: deque(own.in_order(line, now_s)) for tenant, line in by_tenant.items()}
    turns = [(*counters.standing(tenant), tenant) for tenant in lines]
    heapq.heapify(turns)
    while turns:
        counter, served, tenant = turns[0]
        ticket = lines[tenant].popleft()
        merged.append(ticket)
        if lines[tenant]:
            cost = ticket.meter.whole_cost(ticket.output_tokens, ticket.tokens)
            heapq.heapreplace(turns, (counter + cost, served, tenant))
        else:
            heapq.heappop(turns)
    return merged


def others_ahead(own_ahead: int, weight: int, others: dict[str, tuple[int, int]]) -> int:
    """Return about how many tickets of other tenants go before one that has `own_ahead` before it: as many
    of each as its weight gives it turns meanwhile, as far as it has tickets.

    `others`: the count of each one's tickets, and the weight of its latest.
    """
    turns = own_ahead + 1
    return sum(min(count, math.ceil(turns * heavy / weight)) for count, heavy in others.values())
