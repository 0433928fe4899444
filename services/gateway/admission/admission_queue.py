"""Queue requests while the slots at decode are taken: tenants in turn, each one's by class, and of a class
the most urgent and the shortest by turns."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

from services.gateway.admission.fair_turns import TenantLines, in_turn, others_ahead
from services.gateway.admission.request_meter import RequestMeter
from services.gateway.admission.running_answers import RunningAnswers
from services.gateway.admission.taken_slots import TakenSlots
from services.gateway.admission.ticket import STARTED_CLASS, Ticket
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.tenant_jobs import ALONE, TenantStanding
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Overloaded
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.messages import Held
from shared.tasks import StartTask

POLL_S = 0.01
"""The time between two counts of slots while requests wait; heartbeats tell of freed ones about as fast."""
LOOKS_PER_PASS = 10
"""While no slot is free, only every so many counts of slots look for those who wait in vain."""
ENDS_REMEMBERED = 32
WAIT_DOUBT = 1.5
"""A request that waits already is sent away only when its turn is expected to be late by this factor: how
fast slots come free is measured, not known."""
WAIT = "wait"
"""Why such a request is shed, as `penstock_shed_total` counts it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """`waited`: the request had to wait for it. `guest`: it may have a place beyond the ordinary ones."""

    waited: bool
    guest: bool


@dataclass(frozen=True, slots=True)
class _TicketKind:
    """Tickets that a newcomer need not tell apart."""

    model: ModelIdentity
    share: TenantShare
    priority_class: int

    @classmethod
    def of(cls, ticket: Ticket) -> _TicketKind:
        return cls(ticket.model, ticket.meter.share, ticket.priority_class)


class AdmissionQueue:
    """`free_slots(model, blocks)`: how many requests of that size the fleet has room for; None: nobody knows.
    `contends(ahead, behind)`: whether requests of `ahead` take slots that one of `behind` waits for.
    `guest_room(model, blocks)`: as `free_slots`, of all that workers take, the places for guests among them.
    `standing(model, share)`: how many jobs a tenant has at these workers beside others.

    `start` runs the loop that hands out turns, which ends when nobody waits.
    """

    def __init__(
        self,
        free_slots: Callable[[ModelIdentity, int], int | None],
        contends: Callable[[ModelIdentity, ModelIdentity], bool],
        start: StartTask,
        clock: Clock = SYSTEM_CLOCK,
        *,
        guest_room: Callable[[ModelIdentity, int], int | None] = lambda *_: 0,
        standing: Callable[[ModelIdentity, TenantShare], TenantStanding] = lambda *_: ALONE,
    ) -> None:
        self._free_slots = free_slots
        self._contends = contends
        self._start = start
        self._guest_room = guest_room
        self._standing = standing
        self._clock = clock
        self._taken = TakenSlots()
        self._running = RunningAnswers(contends, clock)
        self._counters = ServiceCounters()
        self._lines = TenantLines()
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._tenants: Counter[str] = Counter()  # of those who wait
        self._kinds: Counter[_TicketKind] = Counter()  # of those who wait, too
        self._placing: set[Ticket] = set()  # have their turn, and are not in any heartbeat yet
        self._placing_models: Counter[ModelIdentity] = Counter()  # of those
        self._gaps_s: deque[float] = deque(maxlen=ENDS_REMEMBERED)
        self._gap_began_s = 0.0  # while somebody waits: when a request has ended last, or the waiting began

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def alone(self) -> bool:
        """Return whether at most one tenant is known: then nobody counts what each has had."""
        return self._counters.alone

    def meter(self, share: TenantShare = OPEN_SHARE) -> RequestMeter:
        """Return what counts the use of one request of this share: by it turns are given."""
        return RequestMeter(self._counters, self._taken, share, self._running)

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[Turn]:
        """Wait for a slot, then hold on to it until the route has been tried.

        Raises Overloaded when meanwhile so many have overtaken the request that its time will not do.
        """
        waits = not self._goes_at_once(ticket)
        if waits:
            await self._wait_for_turn(ticket)
        self._begin_placing(ticket)
        ticket.meter.take_turn(ticket.tokens)
        try:
            yield Turn(waits, self._may_be_guest(ticket.model, ticket.meter.share, more=0))
        finally:
            self._end_placing(ticket)

    def held(self) -> Iterator[Held]:
        """Yield the slots that requests have, as far as they have not ended, for an audit."""
        return self._taken.held()

    def record_end(self) -> None:
        """A request that had a slot has ended: while others wait, that tells how fast slots come free."""
        if self._waiting:
            now_s = self._clock.monotonic_s()
            self._gaps_s.append(now_s - self._gap_began_s)
            self._gap_began_s = now_s

    def expected_wait_s(
        self, model: ModelIdentity, priority_class: int, share: TenantShare | None = None
    ) -> float:
        """Return how long a request that came now would wait for its turn; 0 also when nobody can tell.

        With no `share` it goes behind those of all tenants, which none does.
        """
        if not self._kinds and self._slots(model, 1) != 0:
            return 0.0
        started = own = 0
        others: dict[str, tuple[int, int]] = {}
        for kind, count in self._kinds.items():
            if not self._contends(kind.model, model):
                continue
            if kind.priority_class == STARTED_CLASS:
                started += count
            elif share is None or kind.share.tenant == share.tenant:
                own += count * (kind.priority_class <= priority_class)
            else:
                known, _ = others.get(kind.share.tenant, (0, 0))
                others[kind.share.tenant] = known + count, kind.share.weight
        if share is not None and not own and self._is_guest(model, 1, share):
            return 0.0
        ahead = started + own + (0 if share is None else others_ahead(own, share.weight, others))
        if not ahead and self._slots(model, 1) != 0:
            return 0.0
        return self._wait_s(model, ahead + 1, self.seconds_per_end())

    def remaining_wait_s(self, ticket: Ticket) -> float:
        """Return how long a ticket that had its turn and found no slot would wait for the next one; 0 as
        above."""
        if self._is_guest(ticket.model, ticket.blocks, ticket.meter.share):
            return 0.0
        contends = cache(self._contends)
        ahead = 0
        for other in self._in_turn([*self._waiting, ticket]):
            if other is ticket:
                break
            ahead += contends(other.model, ticket.model)
        if not ahead and self._slots(ticket.model, ticket.blocks) != 0:
            return 0.0
        return self._wait_s(ticket.model, ahead + 1, self.seconds_per_end())

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

    def _wait_s(self, model: ModelIdentity, place: int, end_s: float) -> float:
        """Return how long it takes until that many slots have come free, one in `end_s` as was measured; 0
        while nobody can tell."""
        predicted_s = self._running.wait_s(model, place)
        return place * end_s if predicted_s is None else predicted_s

    # ---- turns --------------------------------------------------------------------------------------

    async def _wait_for_turn(self, ticket: Ticket) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._gap_began_s = self._clock.monotonic_s()
            self._start("admission", self._hand_out_turns())
        self._waiting[ticket] = turn
        self._kinds[_TicketKind.of(ticket)] += 1
        self._counters.join(ticket.tenant)
        self._tenants[ticket.tenant] += 1
        try:
            await turn
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._leave(ticket)
            self._end_placing(ticket)  # it may have had its turn in this very moment
            if turn.done() and not turn.cancelled():
                turn.exception()  # or have been sent away: now nobody need know
            raise

    async def _hand_out_turns(self) -> None:
        for look in itertools.count():
            if not self._waiting:
                return
            if look % LOOKS_PER_PASS == 0:
                self._pass_through(whole=True)
            elif self._may_any_go():
                self._pass_through(whole=len({kind.model for kind in self._kinds}) > 1)
            await asyncio.sleep(POLL_S)

    def _pass_through(self, *, whole: bool) -> None:
        """Let those go that have a slot, and send those away that cannot have one in time; where not `whole`,
        as far as there are slots, which all want alike."""
        contends, end_s = cache(self._contends), self.seconds_per_end()
        may_be_guest = cache(self._may_be_guest)
        staying: Counter[ModelIdentity] = Counter()
        blocked: set[ModelIdentity] = set()  # a request without a slot blocks all behind it
        guests_blocked: set[ModelIdentity] = set()  # so does one that may be a guest those that may, too
        for ticket in self._in_turn(self._waiting):
            if self._waiting[ticket].cancelled():  # its task has not run since, and takes it out then
                continue
            ahead = sum(count for model, count in staying.items() if contends(model, ticket.model))
            is_blocked = any(contends(model, ticket.model) for model in blocked)
            is_guest = may_be_guest(ticket.model, ticket.meter.share) and not any(
                contends(model, ticket.model) for model in guests_blocked
            )
            has_slot = not is_blocked and self._slots(ticket.model, ticket.blocks) != 0
            if has_slot or (is_guest and self._room(ticket.model, ticket.blocks) != 0):
                may_be_guest.cache_clear()
                self._begin_placing(ticket)
                ticket.meter.take_turn(ticket.tokens)
                if ticket.is_new:
                    self._lines.count(ticket, self._waiting, self._clock.monotonic_s())
                self._leave(ticket).set_result(None)
                continue
            wait_s = self._wait_s(ticket.model, ahead + 1, end_s)
            if self._is_late(ticket, wait_s):
                self._send_away(ticket, wait_s)
                continue
            staying[ticket.model] += 1
            blocked.add(ticket.model)
            if is_guest:
                guests_blocked.add(ticket.model)
            if not whole and (
                is_guest or not any(may_be_guest(kind.model, kind.share) for kind in self._kinds)
            ):
                return

    def _begin_placing(self, ticket: Ticket) -> None:
        if ticket not in self._placing:
            self._placing.add(ticket)
            self._placing_models[ticket.model] += 1

    def _end_placing(self, ticket: Ticket) -> None:
        if ticket in self._placing:
            self._placing.remove(ticket)
            self._placing_models[ticket.model] -= 1
            if not self._placing_models[ticket.model]:
                del self._placing_models[ticket.model]

    def _in_turn(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        return in_turn(tickets, self._counters, self._clock.monotonic_s(), self._lines)

    def _is_late(self, ticket: Ticket, wait_s: float) -> bool:
        """Others have overtaken it, or slots come free more slowly than when it came. A request that its
        client has tokens of is not sent away."""
        return ticket.is_new and wait_s > WAIT_DOUBT * ticket.deadline.remaining_s(self._clock)

    def _send_away(self, ticket: Ticket, wait_s: float) -> None:
        self._leave(ticket).set_exception(too_long(wait_s, ticket.deadline.remaining_s(self._clock)))

    def _leave(self, ticket: Ticket) -> asyncio.Future[None]:
        """It waits no more; returns what tells it so."""
        self._counters.leave(ticket.tenant)
        self._tenants[ticket.tenant] -= 1
        if not self._tenants[ticket.tenant]:
            del self._tenants[ticket.tenant]
            self._lines.forget(ticket.tenant)
        kind = _TicketKind.of(ticket)
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
        return self._waiting.pop(ticket)

    def _goes_at_once(self, ticket: Ticket) -> bool:
        """Whether there is a place for a newcomer that nobody who waits would have."""
        share = ticket.meter.share
        if not self._waiting:
            return self._may_go(ticket.model, ticket.blocks, share)
        return share.tenant not in self._tenants and self._is_guest(ticket.model, ticket.blocks, share)

    def _may_any_go(self) -> bool:
        models = {kind.model for kind in self._kinds}
        if any(self._slots(model, 1) != 0 for model in models):
            return True
        roomy = {model for model in models if self._room(model, 1) != 0}
        kinds = {(kind.model, kind.share) for kind in self._kinds if kind.model in roomy}
        return any(self._may_be_guest(model, share) for model, share in kinds)

    def _may_go(self, model: ModelIdentity, blocks: int, share: TenantShare) -> bool:
        return self._slots(model, blocks) != 0 or self._is_guest(model, blocks, share)

    def _is_guest(self, model: ModelIdentity, blocks: int, share: TenantShare) -> bool:
        """Whether there is a place beyond the slots, and the tenant may have it."""
        return self._may_be_guest(model, share) and self._room(model, blocks) != 0

    def _may_be_guest(self, model: ModelIdentity, share: TenantShare, more: int = 1) -> bool:
        return self._taken.may_be_guest(share, self._standing(model, share), more)

    def _room(self, model: ModelIdentity, blocks: int) -> int | None:
        return self._left_of(self._guest_room(model, blocks), model)

    def _slots(self, model: ModelIdentity, blocks: int) -> int | None:
        return self._left_of(self._free_slots(model, blocks), model)

    def _left_of(self, slots: int | None, model: ModelIdentity) -> int | None:
        if slots is None:
            return None
        placing = self._placing_models.items()
        return max(0, slots - sum(count for ahead, count in placing if self._contends(ahead, model)))


def too_long(wait_s: float, remaining_s: float) -> Overloaded:
    """The error of a request whose turn at decode is not expected to come within `remaining_s`."""
    return Overloaded(
        f"{wait_s:.1f} s of requests wait for decode and {remaining_s:.1f} s are left: "
        "retry later or allow a longer ttft_deadline_ms",
        hop="decode",
        retry_after_ms=max(1, math.ceil((wait_s - remaining_s) * 1000)),
        reason=WAIT,
    )
