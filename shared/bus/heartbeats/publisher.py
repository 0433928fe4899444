"""Send our own heartbeat to whoever listens: often while there is something to tell of, else at ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from shared.alarm import Alarm
from shared.bus import subjects
from shared.bus.bus import Bus, Delivery
from shared.bus.fleet_state import HEARTBEAT_S, REST_AFTER_S, REST_HEARTBEAT_S
from shared.bus.heartbeats.repeated_beats import beat_with
from shared.deadline import SYSTEM_CLOCK
from shared.errors import PenstockError
from shared.messages import Heartbeat, HeartbeatRequest
from shared.tasks import start_task
from shared.ticks import seconds_to_tick

log = structlog.get_logger()

MIN_BEAT_S = 0.05
"""Changes within this time share one heartbeat."""
SETTLE_S = 0.005
"""A change waits so long for others: what changes first is a request that has come, and its first token
should not wait for the news of it, at us or at all who hear them."""


class HeartbeatPublisher:
    """Publishes our heartbeat every HEARTBEAT_S and soon after every change.

    `status` is called once per heartbeat that goes out, so it may hand over "events since the last". With
    `rests` heartbeats become rare, and say so, when there has been nothing to tell of for REST_AFTER_S, and
    then come at the host's ticks; who does that answers heartbeat requests (`answer_heartbeat_requests`).
    """

    def __init__(
        self, bus: Bus, role: str, instance: str, status: Callable[[], Heartbeat], *, rests: bool = False
    ) -> None:
        self.status = status
        self._bus = bus
        self._role = role
        self._instance = instance
        self._rests = rests
        self._moved_s = SYSTEM_CLOCK.monotonic_s()
        self._subject = subjects.fleet(role, instance)
        self._changed = Alarm()
        self._task: asyncio.Task[None] | None = None
        self._last: Heartbeat | None = None
        bus.on_reconnect(self.changed)

    def start(self) -> None:
        """`run` in a task of its own; a service has its supervisor run it instead."""
        self._task = start_task(self.run(), name="heartbeat")
        self._task.add_done_callback(_log_failure)

    def changed(self) -> None:
        """Something that others place by has changed. Cheap; many calls make one heartbeat."""
        self._moved_s = SYSTEM_CLOCK.monotonic_s()
        self._changed.ring()

    async def answer_heartbeat_requests(self) -> None:
        """Answer everybody who asks for our heartbeat from now on."""
        await self._bus.serve(
            subjects.heartbeat_request(self._role, self._instance), self._on_heartbeat_request
        )
        await self._bus.serve(subjects.HEARTBEAT_REQUEST_ALL, self._on_heartbeat_request)

    def _on_heartbeat_request(self, delivery: Delivery) -> None:
        call = delivery.message
        if isinstance(call, HeartbeatRequest) and (not call.roles or self._role in call.roles):
            self.changed()

    async def stop(self) -> None:
        """End with a last heartbeat that says "stopped" and for the rest repeats the one before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._last is not None:
            worker = replace(self._last.worker, added=b"", removed=b"")
            await self._send(self._last, state="stopped", worker=worker)

    async def run(self) -> None:
        """Send heartbeats for ever. Raises what `status` raises."""
        while True:
            self._changed.clear()
            beat = self.status()
            rests = self._is_at_rest(beat)
            next_s = REST_HEARTBEAT_S if rests else HEARTBEAT_S
            await self._send(beat, next_ms=round(next_s * 1e3))
            await self._until_due(seconds_to_tick(next_s) if rests else next_s)

    async def _until_due(self, next_s: float) -> None:
        """Wait for so long, or until shortly after a change."""
        since_s = SYSTEM_CLOCK.monotonic_s()
        if await self._changed.wait(next_s):
            waited_s = SYSTEM_CLOCK.monotonic_s() - since_s
            await asyncio.sleep(min(max(SETTLE_S, MIN_BEAT_S - waited_s), max(0.0, next_s - waited_s)))

    def _is_at_rest(self, beat: Heartbeat) -> bool:
        """Nothing has happened for a while, and nothing is under way."""
        if not self._rests or _is_busy(beat):
            self._moved_s = SYSTEM_CLOCK.monotonic_s()
            return False
        return SYSTEM_CLOCK.monotonic_s() - self._moved_s >= REST_AFTER_S

    async def _send(self, beat: Heartbeat, **said: Any) -> None:
        """Send a heartbeat with what is `said` of its fields, and the time."""
        self._last = beat_with(
            beat,
            **said,
            sent_unix_us=SYSTEM_CLOCK.unix_us(),
            sent_steady_us=SYSTEM_CLOCK.steady_us(),
            reconnects=self._bus.reconnects,
        )
        try:
            await self._bus.publish(self._subject, self._last)
        except PenstockError as error:
            log.warning("heartbeat_failed", error=error.message)


def _is_busy(beat: Heartbeat) -> bool:
    """Return whether what it tells may be different soon."""
    if (
        beat.state != "ready"
        or beat.live
        or beat.queued
        or beat.stalled_ms
        or beat.worker.added
        or beat.worker.removed
    ):
        return True
    return bool(beat.gateway.degradation or beat.gateway.breakers)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("fleet_task_failed", task=task.get_name(), exc_info=task.exception())
