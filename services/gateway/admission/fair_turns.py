"""Put tickets in the order of their turns: tenants by what they have had, each tenant's own by class."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable

from services.gateway.admission.ticket import Ticket
from shared.fairness.service_counters import ServiceCounters


def in_turn(tickets: Iterable[Ticket], counters: ServiceCounters, now_s: float) -> list[Ticket]:
    """Return first what has started, whoever's it is, then the tenants' own lines, merged: next is always the
    first of the tenant with the least service, had and promised by what stands before in this order."""
    ordered = sorted(tickets, key=lambda ticket: ticket.order(now_s))
    if counters.alone:
        return ordered
    merged = [ticket for ticket in ordered if not ticket.is_new]
    lines: dict[str, deque[Ticket]] = {}
    for ticket in ordered[len(merged) :]:
        lines.setdefault(ticket.tenant, deque()).append(ticket)
    turns = [(*counters.standing(tenant), tenant) for tenant in lines]
    heapq.heapify(turns)
    while turns:
        counter, served, tenant = turns[0]
        ticket = lines[tenant].popleft()
        merged.append(ticket)
        if lines[tenant]:
            cost = ticket.meter.whole_cost(ticket.max_tokens, ticket.tokens)
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
