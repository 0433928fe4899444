"""Clients of a simulated fleet: each makes its call as planned, over gRPC or HTTP, and judges how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from services.gateway.keys.keys_in_force import POLL_S as KEYS_POLL_S
from services.gateway.scope.outcome import CANCELLED, EXPIRED, FAILED, FINISHED, SHED
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.callers import Caller, GrpcCaller, HttpCaller
from tests.simulation.swarm.keys import KEYS, OWNER
from tests.simulation.swarm.plan import Edge, Leaving, Plan, PlannedCall
from tests.simulation.swarm.reader import Reader, Response
from tests.simulation.swarm.swarm_fleet import SwarmFleet
from tests.simulation.swarm.tenancy import may_search

DEFAULT_DEADLINE_S = 120.0
DEFAULT_TTFT_DEADLINE_S = 60.0
"""The gateway's own, where a request says none."""
LATE_S = 0.5
"""An end may come so much after its deadline: what the gateway needs to say so."""
EARLY_S = 0.1
"""A worker may take a deadline for over so much too soon: what clocks of two nodes differ by unnoticed."""
SLOW_READER_S = 5.0
"""The gateway waits so long for a client that does not read its end."""
KEYS_SEEN_S = KEYS_POLL_S + 0.5
"""A change of the keys counts after so long."""
PROMPT_S = 8.0
"""A call of a plan in which little breaks has ended after so long, where engines are fast."""
SLOW_STEPS_S = 0.5
"""It may take so much longer for each time that its engines are slower."""
LOST_ONCE_S = 4.5
"""The longest time of a call where one message is lost, and engines are fast."""
KNOWN_SILENCE_S = 1.9
"""The longest time of a call where one worker is silent and everybody knows: nobody waits for its answer."""
LEFT_S = 1.5
"""Nothing is held for a client that has left so long ago, where nothing breaks and steps are short."""
SHORT_S = 0.4
"""A call of less time may fail for want of somebody who is on its way back."""
CANNOT_BE_COMPUTED = "to compute and"
"""The words of a gateway where nobody computes a prompt in the time that it has, however idle they are."""
CALLED_INVALID = ("INVALID_ARGUMENT", "invalid_value")
"""What a gateway says to a request that no worker would take; clients of a plan make none."""
POISON = "workers failed while they computed this request"
"""What a gateway says to a request over which engines die again and again."""
FIRST_PROBE = 100
"""The number of the first call that asks again what was asked before."""
CLIENTS = "clients"
"""The node of all clients."""


class Client:
    """One call of a plan, and how it may end by that."""

    def __init__(
        self, fleet: SwarmFleet, plan: Plan, call: PlannedCall, expected: Sequence[Response | None]
    ) -> None:
        self._fleet = fleet
        self._record = fleet.record
        self._plan = plan
        self._call = call
        self._began_s = 0.0
        self._left = False
        self._looks = False
        """Whether what is left of its call is looked for."""
        self._key_is_out = False
        self.readers = [
            Reader(fleet.record, f"{call.name}{'abcdefgh'[number]}", one, call.read_pause_s)
            for number, one in enumerate(expected)
        ]
        secret = KEYS[call.key].secret if call.key else ""
        self._over_grpc = GrpcCaller(call, secret, self.readers)
        self._caller: Caller = self._over_grpc
        if call.edge is not Edge.GRPC:
            self._caller = HttpCaller(fleet.record, call, secret, self.readers)

    async def live(self) -> str:
        """Make the call and return how it ended, in one word."""
        call, ask, fleet = self._call, ASKS[self._call.ask], self._fleet
        await asyncio.sleep(call.at_s)
        if not fleet.serves(call.gateway):
            self._record.note(call.name, "finds no gateway")
            return "no gateway"
        self._record.note(call.name, f"asks for {ask.what}")
        fleet.tenancy.begin(call)
        self._began_s = fleet.world.now_s
        self._key_is_out = self._is_out()
        asking = fleet.client(CLIENTS).start(self._caller.ask(), call.name)
        leaving = asyncio.ensure_future(self._leave(asking))
        latest_s = self._deadline_s() + LATE_S + self._plan.stalls_s(call.gateway)
        if call.read_pause_s:  # what is on its way is read on, event by event
            latest_s += SLOW_READER_S + LATE_S + call.read_pause_s * ask.n * ask.max_tokens
        try:
            await asyncio.wait({asking}, timeout=latest_s)
            return self._judge(asking)
        finally:
            if self._looks:
                await leaving
            leaving.cancel()

    @property
    def has_finished(self) -> bool:
        return all(reader.outcome == FINISHED for reader in self.readers)

    def _deadline_s(self) -> float:
        return self._call.deadline_s or DEFAULT_DEADLINE_S

    def _earliest_s(self) -> float:
        return min(self._deadline_s(), self._call.ttft_deadline_s or DEFAULT_TTFT_DEADLINE_S)

    def _is_out(self) -> bool:
        """Whether the gateway must have seen that the key was taken out of its file."""
        out_since_s = self._fleet.keys.out_since_s.get(self._call.key)
        if out_since_s is None:
            return False
        return self._began_s - out_since_s > KEYS_SEEN_S + self._plan.stalls_s(self._call.gateway)

    async def _leave(self, asking: asyncio.Task[None]) -> None:
        """End the call as its client does, if it does."""
        call = self._call
        await asyncio.sleep(call.leaves_after_s)
        request_id = self.readers[0].request_id
        if asking.done() or call.leaving is Leaving.STAYS:
            return
        if call.leaving is Leaving.DROPS:
            self._record.note(call.name, "drops the call")
            self._left = True
            asking.cancel()
            await self._look_at_what_is_left()
        elif request_id and call.leaving is Leaving.FOREIGN:
            other = KEYS[OWNER if call.tenant != OWNER else "globex"]
            self._record.note(call.name, f"{other.tenant} tries to cancel it")
            foreign = GrpcCaller(call, other.secret, self.readers)
            await self._fleet.client(CLIENTS).start(
                foreign.cancel(request_id, self._deadline_s()), f"{call.name}-foreign"
            )
        elif request_id:
            self._record.note(call.name, "cancels it by its id")
            self._left = True
            cancel = self._over_grpc.cancel(request_id, self._deadline_s())
            if why := await self._fleet.client(CLIENTS).start(cancel, f"{call.name}-cancel"):
                self._record.note(call.name, f"could not cancel: {why}")
            else:
                await self._look_at_what_is_left()

    async def _look_at_what_is_left(self) -> None:
        """A while after the client has left, nothing is held for it: what it began is not computed on."""
        request_id = self.readers[0].request_id
        self._looks = True
        await asyncio.sleep(LEFT_S * self._plan.step_room)
        if not request_id or not self._is_peaceful or self._is_shared:
            return
        held = [one for one in await self._fleet.all_held() if one.request_id.split("/")[0] == request_id]
        if held and self._is_peaceful:
            self._record.breaks("who leaves leaves no work", self._call.name, f"{held}")

    @property
    def _is_shared(self) -> bool:
        """Whether others ask for the same, so that what is computed for it may be for them."""
        call = self._call
        return any(
            (one.ask, one.tenant) == (call.ask, call.tenant) for one in self._plan.calls if one != call
        )

    # ---- how it ended -------------------------------------------------------------------------------

    def _judge(self, asking: asyncio.Task[None]) -> str:
        name, took_s = self._call.name, self._fleet.world.now_s - self._began_s
        if not asking.done():
            self._record.breaks("every call ends by its deadline", name, f"no end after {took_s:.3f} s")
            return "no end"
        self._check_tenancy()
        if asking.cancelled():
            return "dropped"
        if (fault := asking.exception()) is not None:
            self._record.breaks("what comes can be read", name, repr(fault))
            return "fault"
        ends = self._caller.ends
        outcome = min(ends, key=gravity, default=FINISHED)
        if not self._caller.is_over:
            if self._plan.may_go(self._call.gateway):
                return "gateway gone"
            told = f"{len(ends)} of {len(self.readers)}: {self._caller.details}"
            self._record.breaks("one terminal event", name, told)
        if self._key_is_out and not self._caller.is_refused:
            self._record.breaks("a key that is taken out lets nobody in", name, f"{outcome}")
        if self._caller.is_refused and self._plan.changes_key(self._call.key):
            return "refused"
        self._check_pace(took_s)
        self._check_cause(outcome, took_s)
        return outcome

    @property
    def _is_peaceful(self) -> bool:
        """Whether nothing has broken so far: a request has one route then."""
        return not self._record.disturbed and not self._plan.rare

    def _check_tenancy(self) -> None:
        call, tenancy = self._call, self._fleet.tenancy
        for reader in self.readers:
            if reader.request_id:
                tenancy.admitted(call, reader.request_id)
            tenancy.check_passages(call, reader.got.passages)
            if reader.earlier:
                tenancy.check_earlier_answer(call, reader.earlier)
            if self._is_peaceful:
                tenancy.check_cached(call, reader.usage.cached_tokens)

    def _check_pace(self, took_s: float) -> None:
        """Look whether it waited for what it need not have waited for."""
        call, plan = self._call, self._plan
        stalls_s = plan.stalls_s(call.gateway)
        for reader in self.readers:
            late_s = 0.0 if reader.first_s is None else reader.first_s - self._began_s - LATE_S - stalls_s
            in_parts = call.edge is not Edge.HTTP  # else its first token comes with its last
            if call.ttft_deadline_s and late_s > call.ttft_deadline_s and in_parts and not call.read_pause_s:
                self._record.breaks("no first token after its deadline", reader.name, f"{late_s:.3f} s late")
            if reader.degraded and ASKS[call.ask].strict:
                self._record.breaks("who may not do without passages does not", reader.name, reader.degraded)
            if reader.usage.replacements and plan.has_room and self._is_peaceful:
                what = f"{reader.usage.replacements} times"
                self._record.breaks("nothing is routed anew where nothing breaks", reader.name, what)
        if took_s > self._longest_s(took_s) and not call.read_pause_s:
            self._record.breaks(
                "no call waits long where little breaks", call.name, f"it took {took_s:.3f} s"
            )

    def _longest_s(self, took_s: float) -> float:
        """Return how long the call may take, as little as breaks while it lasts."""
        call, plan = self._call, self._plan
        longest_s = inf
        if plan.is_quick:
            longest_s = PROMPT_S + SLOW_STEPS_S * (plan.slowness - 1)
        if plan.slowness == 1:
            longest_s = min(longest_s, LOST_ONCE_S) if plan.loses_once else longest_s
            if plan.knows_silence(call.at_s, call.at_s + took_s) and call.number < FIRST_PROBE:
                longest_s = KNOWN_SILENCE_S
        return longest_s

    def _check_cause(self, outcome: str, took_s: float) -> None:
        """Look whether it had to end like this."""
        call, ask, plan = self._call, ASKS[self._call.ask], self._plan
        if outcome == CANCELLED and not self._left and not call.read_pause_s:
            self._record.breaks("cancelled only by its client", call.name, f"after {took_s:.3f} s")
        earliest_s = self._earliest_s()
        foreseen = CANNOT_BE_COMPUTED in self._caller.details
        if outcome == EXPIRED and took_s < earliest_s - EARLY_S and not ask.strict and not foreseen:
            why = f"after {took_s:.3f} s of {earliest_s:.3f} s"
            self._record.breaks("no deadline passes early", call.name, why)
        if not may_search(call.tenant, ask.corpus):
            if outcome == FINISHED:
                self._record.breaks("no passage across tenants", call.name, f"it searched {ask.corpus}")
            return
        if outcome == FAILED and any(word in self._caller.details for word in CALLED_INVALID):
            self._record.breaks("what is valid is not refused as invalid", call.name, self._caller.details)
        if POISON in self._caller.details and not plan.may_convict:
            self._record.breaks("nobody is convicted of one crash", call.name, self._caller.details)
        if KEYS[call.key].requests_per_min if call.key else 0:
            return
        served = (plan.can_always_serve or plan.is_quick) and (plan.can_always_search or not ask.strict)
        hurried = call.deadline_s or call.ttft_deadline_s
        may_fail = outcome == FAILED and 0 < self._earliest_s() < SHORT_S
        if (
            served
            and not may_fail
            and (outcome == FAILED or (outcome in (SHED, EXPIRED) and plan.has_room and not hurried))
        ):
            why = f"{outcome} after {took_s:.3f} s: {self._caller.details}"
            self._record.breaks("what can be served is", call.name, why)


def gravity(outcome: str) -> int:
    """Of several choices the one counts over which the others were given up."""
    return 2 if outcome == FINISHED else int(outcome == CANCELLED)
