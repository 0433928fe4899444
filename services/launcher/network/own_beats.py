"""Keep the latest heartbeats of a stack's own instances; others may share the bus."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.launcher.processes.instance import Instance
from shared.bus import Delivery
from shared.bus.fleet_state import HEARTBEAT_S
from shared.messages import Heartbeat


class OwnBeats:
    """`news` is called when a process has come, or is in another state."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news
        self._ours: set[tuple[str, str]] = set()
        self._beats: dict[tuple[str, str], Heartbeat] = {}
        self._heard_s: dict[tuple[str, str], float] = {}

    def follow(self, role: str, instance: str) -> None:
        """Take those of this instance from now on."""
        self._ours.add((role, instance))

    def forget(self, role: str, instance: str) -> None:
        """There is no such instance any more."""
        self._ours.discard((role, instance))
        self._beats.pop((role, instance), None)

    def on_beat(self, delivery: Delivery) -> None:
        beat = delivery.message
        if isinstance(beat, Heartbeat) and (beat.role, beat.instance) in self._ours:
            before = self._beats.get((beat.role, beat.instance))
            if before is None or (before.pid, before.state) != (beat.pid, beat.state):
                self._news()
            self._beats[beat.role, beat.instance] = beat
            self._heard_s[beat.role, beat.instance] = time.monotonic()

    def of(self, instance: Instance) -> Heartbeat | None:
        """Return the latest heartbeat of the process that runs now."""
        beat = self._beats.get((instance.spec.role, instance.spec.instance))
        return beat if beat is not None and beat.pid == instance.pid else None

    def is_heard(self, beat: Heartbeat) -> bool:
        """Return whether it moves, and the next heartbeat is not late."""
        late_s = self._heard_s[beat.role, beat.instance] + beat.next_ms / 1e3 + HEARTBEAT_S
        return beat.state != "stalled" and time.monotonic() < late_s
