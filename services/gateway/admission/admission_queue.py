"""Queue requests while the slots at decode are taken: by class, deadline and arrival."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.fleet.model_identity import ModelIdentity
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import Overloaded

POLL_S = 0.01
"""The time between two counts of slots while requests wait; heartbeats tell of freed ones about as fast."""
AGING_S = 5.0
"""A request that waits rises by one class in this time, so that no class starves."""
ENDS_REMEMBERED = 32
CLASSES: dict[int, int] = {pb.PRIORITY_HIGH: 1, pb.PRIORITY_NORMAL: 2, pb.PRIORITY_LOW: 3}
LOWEST_CLASS = max(CLASSES.values())
WAIT_DOUBT = 1.5
"""A request that waits already is sent away only when its turn is expected to be late by this factor: how
fast slots come free is measured, not known."""
WAIT = "wait"
"""Why such a request is shed, as `penstock_shed_total` counts it."""
STARTED_CLASS = 0
"""The class of a request that its client has tokens of: it goes before everything new."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that wants to be routed. `blocks`: the KV blocks that it may come to need."""

    model: ModelIdentity
    priority_class: int
    deadline: Deadline
    blocks: int
    arrived_s: float
    number: int = field(default_factory=lambda: next(_numbers))

    def order(self, now_s: float) -> tuple[int, float, int]:
        """The least goes first."""
        risen = int((now_s - self.arrived_s) / AGING_S)
        return max(min(self.priority_class, 1), self.priority_class - risen), self.deadline.at_s, self.number


class AdmissionQueue:
    """`free_slots(model, blocks)`: how many requests of that size the fleet has room for; None: nobody knows.
    `contends(ahead, behind)`: whether requests of `ahead` take slots that one of `behind` waits for.

    `start` runs the loop that hands out turns, which ends when nobody waits.
    """

    def __init__(
        self,
        free_slots: Callable[[ModelIdentity, int], int | None],
        contends: Callable[[ModelIdentity, ModelIdentity], bool],
        start: Callable[[str, Coroutine[Any, Any, None]], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._free_slots = free_slots
        self._contends = contends
        self._start = start
        self._clock = clock
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._placing: set[Ticket] = set()  # have their turn, and are not in any heartbeat yet
        self._gaps_s: deque[float] = deque(maxlen=ENDS_REMEMBERED)
        self._gap_began_s = 0.0  # while somebody waits: when a request has ended last, or the waiting began

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for a slot, then hold on to it until the route has been tried.

        Raises Overloaded when meanwhile so many have overtaken the request that its time will not do.
        """
        if self._waiting or not self._has_slot(ticket):
            await self._wait_for_turn(ticket)
        self._placing.add(ticket)
        try:
            yield
        finally:
            self._placing.discard(ticket)

    def record_end(self) -> None:
        """A request that had a slot has ended: while others wait, that tells how fast slots come free."""
        if self._waiting:
            now_s = self._clock.monotonic_s()
            self._gaps_s.append(now_s - self._gap_began_s)
            self._gap_began_s = now_s

    def expected_wait_s(self, model: ModelIdentity, priority_class: int) -> float:
        """Return how long a request that came now would wait for its turn; 0 also when nobody can tell."""
        ahead = sum(
            1
            for ticket in self._waiting
            if ticket.priority_class <= priority_class and self._contends(ticket.model, model)
        )
        if not ahead and self._slots(model, 1) != 0:
            return 0.0
        return (ahead + 1) * self.seconds_per_end()

    def remaining_wait_s(self, ticket: Ticket) -> float:
        """Return how long a ticket that had its turn and found no slot would wait for the next one; 0 as
        above."""
        order = partial(Ticket.order, now_s=self._clock.monotonic_s())
        ahead = sum(
            1
            for other in self._waiting
            if order(other) < order(ticket) and self._contends(other.model, ticket.model)
        )
        if not ahead and self._has_slot(ticket):
            return 0.0
        return (ahead + 1) * self.seconds_per_end()

    def seconds_per_end(self) -> float:
        """Return how long it takes until a slot comes free, 0 while nobody can tell.

        From the ends that were seen while requests waited, up to now: a fleet that stopped is not as fast as
        it was.
        """
        if not self._gaps_s:
            return 0.0
        mean_s = sum(self._gaps_s) / len(self._gaps_s)
        open_s = self._clock.monotonic_s() - self._gap_began_s if self._waiting else 0.0
        return max(mean_s, (sum(self._gaps_s) + open_s) / (len(self._gaps_s) + 1))

    # ---- turns --------------------------------------------------------------------------------------

    async def _wait_for_turn(self, ticket: Ticket) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._gap_began_s = self._clock.monotonic_s()
            self._start("admission", self._hand_out_turns())
        self._waiting[ticket] = turn
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(ticket, None)
            self._placing.discard(ticket)  # it may have had its turn in this very moment
            if turn.done() and not turn.cancelled():
                turn.exception()  # or have been sent away: now nobody need know
            raise

    async def _hand_out_turns(self) -> None:
        while self._waiting:
            now_s = self._clock.monotonic_s()
            blocked: Counter[ModelIdentity] = Counter()  # a request without a slot blocks all behind it
            for ticket in sorted(self._waiting, key=lambda ticket: ticket.order(now_s)):
                ahead = sum(count for model, count in blocked.items() if self._contends(model, ticket.model))
                if not ahead and self._has_slot(ticket):
                    self._placing.add(ticket)
                    self._waiting.pop(ticket).set_result(None)
                elif self._is_late(ticket, ahead):
                    self._send_away(ticket, ahead)
                else:
                    blocked[ticket.model] += 1
            await asyncio.sleep(POLL_S)

    def _is_late(self, ticket: Ticket, ahead: int) -> bool:
        """Others have overtaken it, or slots come free more slowly than when it came. A request that its
        client has tokens of is not sent away."""
        remaining_s = ticket.deadline.remaining_s(self._clock)
        is_new = ticket.priority_class != STARTED_CLASS
        return is_new and (ahead + 1) * self.seconds_per_end() > WAIT_DOUBT * remaining_s

    def _send_away(self, ticket: Ticket, ahead: int) -> None:
        wait_s = (ahead + 1) * self.seconds_per_end()
        self._waiting.pop(ticket).set_exception(too_long(wait_s, ticket.deadline.remaining_s(self._clock)))

    def _has_slot(self, ticket: Ticket) -> bool:
        return self._slots(ticket.model, ticket.blocks) != 0

    def _slots(self, model: ModelIdentity, blocks: int) -> int | None:
        slots = self._free_slots(model, blocks)
        if slots is None:
            return None
        return max(0, slots - sum(1 for ticket in self._placing if self._contends(ticket.model, model)))


def too_long(wait_s: float, remaining_s: float) -> Overloaded:
    """The error of a request whose turn at decode is not expected to come within `remaining_s`."""
    return Overloaded(
        f"{wait_s:.1f} s of requests wait for decode and {remaining_s:.1f} s are left: "
        "retry later or allow a longer ttft_deadline_ms",
        hop="decode",
        retry_after_ms=max(1, math.ceil((wait_s - remaining_s) * 1000)),
        reason=WAIT,
    )
