"""The fleet over the bus: who is there, by everybody's heartbeats, and who is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import structlog

from shared.alarm import Alarm
from shared.bus import subjects
from shared.bus.bus import Bus, Delivery
from shared.bus.fleet_state import (
    SUSPECT_AFTER_S,
    FleetState,
    InstanceView,
    OnLost,
)
from shared.bus.own_lag import OwnLag
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import PenstockError, ProtocolError, Unavailable
from shared.messages import Envelope, Heartbeat, HeartbeatRequest, Snapshot, SnapshotRequest
from shared.roles import ROLES
from shared.tasks import cancel_until_done, start_task

log = structlog.get_logger()

SWEEP_S = 0.05
"""The shortest time between two looks who is silent."""
STANDSTILL_S = SUSPECT_AFTER_S / 2
"""A server that answers so late has stood still: nobody else is blamed for that silence."""
ATTENTIVE_S = 10.0
"""A router looks often for so long after somebody was expected to work: a request is there that it may
fail."""
PAGE_TIMEOUT_S = 1.0
SNAPSHOT_TIMEOUT_S = 10.0
"""The longest time for all pages of an instance's prefix cache."""
SNAPSHOT_PAUSE_S = 1.0
"""The pause after a snapshot that failed."""
FEW_INSTANCES = 16
"""Among more it costs less to wake up in vain than to find at each heartbeat who is silent first."""

__all__ = ["FleetView", "InstanceView"]


class FleetView:
    """The instances that this process knows of `roles`, fed by their heartbeats. `places` as in its state.

    Silence counts only while we listened: not while we were disconnected, not by how much a sweep was late.
    Nobody is suspected before the server has handed over all that it had for us.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, *, roles: Sequence[str] = ROLES, places: bool = False
    ) -> None:
        self._clock = clock
        self._roles = roles
        self._places = places
        self._state = FleetState(clock, keeps_prefixes=places)
        self.own_lag = OwnLag(clock)
        self._bus: Bus
        self._sweeper: asyncio.Task[None] | None = None
        self._attentive_until_s = 0.0
        self._wake = Alarm()
        self._due_s = 0.0
        self._first_silent: InstanceView | None = None
        """The one whose silence the next sweep waits for."""
        self._calls: set[asyncio.Task[None]] = set()
        self.working: Callable[[], bool] = lambda: False
        """Whether there are requests here that an instance could fail, for who places."""
        self._snapshots: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def listen(self, bus: Bus) -> None:
        """Instances appear as their heartbeats come in: they are asked for one now."""
        self._bus = bus
        self._state.origins = bus.offsets
        self._state.on_reconnected = lambda role, instance: bus.ask_again(subjects.inbox(role, instance))
        for role in self._roles:
            await bus.serve(subjects.fleet(role, subjects.ANY), self._on_delivery)
        bus.on_reconnect(self._on_reconnect)
        await self._call_roll()

    async def start(self, bus: Bus) -> None:
        """`listen`, and `run` in a task of its own; a service has its supervisor run it instead."""
        await self.listen(bus)
        self._sweeper = start_task(self.run(), name="fleet-sweep")
        self._sweeper.add_done_callback(_log_failure)

    async def stop(self) -> None:
        sweeper = [self._sweeper] if self._sweeper else []
        await cancel_until_done(*self._snapshots.values(), *self._calls, *sweeper)

    # ---- reading --------------------------------------------------------------------------------

    def instances(self, role: str) -> list[InstanceView]:
        """Return those of a role that can take work: ready and not suspect."""
        assert role in self._roles
        return self._state.instances(role)

    @property
    def announced(self) -> int:
        """Return a number that grows when what the fleet serves, or who of it is ready, may have changed."""
        return self._state.announced

    def get(self, role: str, instance: str) -> InstanceView | None:
        assert role in self._roles
        return self._state.get(role, instance)

    def all(self) -> list[InstanceView]:
        return self._state.all()

    def skewed(self) -> tuple[str, ...]:
        """Instances whose clock differs from ours by more than MAX_SKEW_US."""
        return self._state.skewed()

    def on_lost(self, callback: OnLost) -> None:
        """`callback(role, instance, why)`, synchronous: why is suspect, stopped or restarted."""
        self._state.on_lost(callback)

    def expect_work(self, view: InstanceView) -> None:
        """Work goes to the instance: one that rests is asked whether it is there, so that nobody waits longer
        for a dead one that had rested than for one that had worked."""
        self._attentive_until_s = self._clock.monotonic_s() + ATTENTIVE_S
        self._wake.ring()
        if view.rests:
            self._ask_heartbeat(view)

    # ---- feeding --------------------------------------------------------------------------------

    def _on_delivery(self, delivery: Delivery) -> None:
        beat = delivery.message
        if not isinstance(beat, Heartbeat):
            log.warning("fleet_not_a_heartbeat", message=type(beat).__name__)
            return
        view = self._state.observe(beat)
        if view is None:
            return
        if view.prefix_stale:
            self._ask_snapshot(self._bus, beat)
        if view is self._first_silent:
            self._postpone_sweep()

    def _on_reconnect(self) -> None:
        """Ask everybody anew: what was said meanwhile is lost."""
        self._state.excuse(SUSPECT_AFTER_S)
        self.own_lag.note(SUSPECT_AFTER_S)
        self._start_call(self._call_roll())

    def _ask_heartbeat(self, view: InstanceView) -> None:
        self._state.expect(view)
        beat = view.heartbeat
        self._start_call(self._call(subjects.heartbeat_request(beat.role, beat.instance), HeartbeatRequest()))

    def _start_call(self, call: Coroutine[None, None, None]) -> None:
        task = start_task(call, name="roll-call")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(_log_failure)

    async def _call_roll(self) -> None:
        await self._call(subjects.HEARTBEAT_REQUEST_ALL, HeartbeatRequest(tuple(self._roles)))

    async def _call(self, subject: str, call: HeartbeatRequest) -> None:
        try:
            await self._bus.publish(subject, call)
        except PenstockError as error:
            log.warning("heartbeat_request_failed", error=error.message)

    def _ask_snapshot(self, bus: Bus, beat: Heartbeat) -> None:
        """One at a time per instance; a failed one is tried again at a heartbeat after SNAPSHOT_PAUSE_S."""
        key = (beat.role, beat.instance)
        if key in self._snapshots:
            return
        task = start_task(self._snapshot(bus, beat), name=f"snapshot-{beat.instance}")
        self._snapshots[key] = task
        task.add_done_callback(lambda _: self._snapshots.pop(key, None))
        task.add_done_callback(_log_failure)

    async def _snapshot(self, bus: Bus, beat: Heartbeat) -> None:
        """Page after page, until none is missing."""
        subject, until = subjects.inbox(beat.role, beat.instance), Deadline.after(SNAPSHOT_TIMEOUT_S)
        bucket: int | None = 0
        try:
            while bucket is not None:
                request, deadline = SnapshotRequest(bucket), until.shrink(PAGE_TIMEOUT_S)
                page = await bus.ask(subject, request, Envelope(), deadline)
                if not isinstance(page, Snapshot):
                    raise ProtocolError(f"{type(page).__name__} is no answer to a SnapshotRequest")
                bucket = self._state.apply_snapshot(beat.role, beat.instance, beat.incarnation, page, bucket)
        except PenstockError as error:
            log.info("fleet_snapshot_failed", peer_role=beat.role, peer=beat.instance, error=error.message)
            await asyncio.sleep(SNAPSHOT_PAUSE_S)

    # ---- silence --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Find out for ever who is silent."""
        swept_s = self._clock.monotonic_s()
        while True:
            began_s, pause_s = self._clock.monotonic_s(), self._pause_s()
            self._due_s = began_s + pause_s
            await self._sleep(pause_s)
            swept_s = await self._sweep_since(swept_s, self._due_s - began_s)

    def _pause_s(self) -> float:
        """Return how long to sleep: who has routed something looks often, to know its own lag; others sleep
        until somebody is
        late."""
        return SWEEP_S if self._attentive() else max(SWEEP_S, self._state.next_silence_s())

    def _attentive(self) -> bool:
        return self._places and (self._clock.monotonic_s() < self._attentive_until_s or self.working())

    async def _sleep(self, pause_s: float) -> None:
        """Sleep for so long, or until work is placed."""
        if self._attentive():
            await asyncio.sleep(pause_s)
            return
        self._wake.clear()
        self._first_silent = self._state.first_silent(FEW_INSTANCES)
        await self._wake.wait(pause_s)
        self._first_silent = None

    def _postpone_sweep(self) -> None:
        """Sleep on: who could have been silent first was heard in time."""
        self._first_silent = self._state.first_silent(FEW_INSTANCES)
        if self._first_silent is not None:
            pause_s = self._pause_s()
            self._due_s = self._clock.monotonic_s() + pause_s
            self._wake.postpone(pause_s)

    async def _sweep_since(self, swept_s: float, pause_s: float) -> float:
        """Look who has been silent too long; the time of this sweep, for the next one."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - swept_s
        listened_s = min(passed_s, pause_s) if self._bus.connected else 0.0
        self._state.excuse(passed_s - listened_s)
        self.own_lag.note(passed_s - listened_s)
        for view in self._state.overdue():
            self._ask_heartbeat(view)
        if not self._state.anyone_silent() or await self._heard_all():
            self._state.sweep()
        return now_s

    async def _heard_all(self) -> bool:
        """Return whether all that the server had for us is here. What this takes is our lag, or the
        server's: one that has stood still passes on later what others have told it meanwhile."""
        asked_s = self._clock.monotonic_s()
        try:
            await self._bus.flush()
        except Unavailable:
            return False
        took_s = self._clock.monotonic_s() - asked_s
        if took_s >= STANDSTILL_S:
            self._state.excuse(SUSPECT_AFTER_S + took_s)
        return True


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("fleet_task_failed", task=task.get_name(), exc_info=task.exception())
