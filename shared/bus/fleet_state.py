"""Know who is in the fleet, as heartbeats tell it: pure logic with a clock, no bus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import structlog

from shared.deadline import SYSTEM_CLOCK, Clock, ClockOffsets, ClockReading
from shared.messages import Heartbeat, Snapshot, unpack_hashes
from shared.roles import TARGET_ROLES
from shared.telemetry import metrics

log = structlog.get_logger()

HEARTBEAT_S = 0.25
MISSED_BEATS = 3
SUSPECT_AFTER_S = HEARTBEAT_S * MISSED_BEATS
REST_HEARTBEAT_S = 2.0
"""The time between heartbeats of an instance that has had nothing to do for REST_AFTER_S."""
REST_AFTER_S = 5.0
HEARTBEAT_REQUEST_S = 0.1
"""A listener asks everybody for a heartbeat as it begins; the answers take so long on a busy machine."""
MAX_NEXT_S = 10.0
"""Nobody is believed to come back later than that."""
FORGET_AFTER_S = 30.0
"""A suspect that stays silent this long leaves the table."""
MAX_INSTANCES = 1024
"""More than any fleet has; beyond it newcomers are dropped and counted."""

_announcement = attrgetter(
    "model",
    "weights_digest",
    "tokenizer_digest",
    "context_tokens",
    "tokenizer",
    "worker.layout",
    "worker.kv_groups",
    "worker.adapters",
    "decode.default_sampling",
)
"""Return what an instance says of the model that it serves: the rest of a heartbeat is about its work."""

OnLost = Callable[[str, str, str], None]
"""(role, instance, why); why is suspect (silent, or stalled by its own word), stopped or restarted. Must not
block."""


@dataclass(slots=True)
class InstanceView:
    """One instance as it is known here; `prefix` holds the block hashes of its prefix cache, if kept."""

    heartbeat: Heartbeat
    last_seen_s: float
    """The time when its last heartbeat came."""
    excused_s: float = 0.0
    """The part of the silence since then that was ours: we could not listen."""
    next_s: float = HEARTBEAT_S
    """The next heartbeat is due so long after the last one: as it said, or sooner since it was asked."""
    asked: bool = False
    """It was asked since its last heartbeat; it answers at once."""
    suspect: bool = False
    prefix: set[bytes] = field(default_factory=set)
    prefix_event_id: int = 0
    prefix_stale: bool = False
    """An event was missed: `prefix` is a guess until all pages of a snapshot have come."""
    prefix_gap: bool = False
    """An event was missed since the first of the pages that have come."""

    @property
    def ready(self) -> bool:
        return self.heartbeat.state == "ready" and not self.suspect

    @property
    def silent_since_s(self) -> float:
        """The time from which on its silence counts against it."""
        return self.last_seen_s + self.excused_s

    @property
    def silent_at_s(self) -> float:
        """Return when it becomes a suspect unless it is heard from."""
        return self.silent_since_s + self.next_s + SUSPECT_AFTER_S - HEARTBEAT_S

    @property
    def overdue_at_s(self) -> float:
        return self.silent_since_s + self.next_s + HEARTBEAT_S

    @property
    def next_look_s(self) -> float:
        """Return when its silence begins to mean something."""
        return self.overdue_at_s if self.rests else self.silent_at_s

    @property
    def rests(self) -> bool:
        """Its next heartbeat is not due soon."""
        return self.next_s > HEARTBEAT_S and not self.asked and not self.suspect

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of a prompt this instance need not compute."""
        return self.heartbeat.worker.kv_groups.reusable_blocks(block_hashes, self.prefix.__contains__)


class FleetState:
    """The table of instances. `observe` and `sweep` call the on_lost callbacks.

    `keeps_prefixes`: follow the prefix caches of the workers that requests are placed on; only who places
    needs them.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, keeps_prefixes: bool = False) -> None:
        self._clock = clock
        self._keeps_prefixes = keeps_prefixes
        self._views: dict[tuple[str, str], InstanceView] = {}
        self._ready: dict[str, list[InstanceView]] = {}
        """The instances that can take work, by role, until one of any role comes, goes or changes in that: a
        request asks forty times."""
        self.announced = 0
        """Grows when an instance comes, goes, may take work or may not any more, or says something else of
        its model: what follows from these alone need not be found anew before."""
        self._show_skew: dict[str, Callable[[float], None]] = {}
        """The function that sets the metric, by instance: finding its series takes longer than that."""
        self._on_lost: list[OnLost] = []
        self.on_reconnected: Callable[[str, str], None] = lambda _role, _instance: None
        """Called with (role, instance) when it has its connection again: what was sent to it may be lost."""
        self.offsets = ClockOffsets()
        """This clock minus that of every instance, for `skewed`."""
        self.origins = ClockOffsets()
        """The same for gateways alone: theirs are the clocks that deadlines are stamped with."""

    # ---- reading --------------------------------------------------------------------------------

    def instances(self, role: str) -> list[InstanceView]:
        """Return those of a role that can take work: ready and not suspect."""
        ready = self._ready.get(role)
        if ready is None:
            ready = [view for (of, _), view in self._views.items() if of == role and view.ready]
            self._ready[role] = ready
        return ready.copy()

    def get(self, role: str, instance: str) -> InstanceView | None:
        return self._views.get((role, instance))

    def all(self) -> list[InstanceView]:
        return list(self._views.values())

    def skewed(self) -> tuple[str, ...]:
        """Instances whose clock differs from ours by more than MAX_SKEW_US."""
        return self.offsets.skewed()

    def on_lost(self, callback: OnLost) -> None:
        self._on_lost.append(callback)

    # ---- feeding --------------------------------------------------------------------------------

    def observe(self, beat: Heartbeat) -> InstanceView | None:
        """Take in a heartbeat; None when it is of a former life, older than the last or there is no room."""
        key = (beat.role, beat.instance)
        view = self._views.get(key)
        if view is not None and self._is_stale(view, beat):
            metrics.STALE_MESSAGES.inc()
            return None
        if view is not None and not self._same_life(view, beat):
            self._lose(key, "restarted")
            view = None
        if beat.state == "stopped":
            if view is not None:
                self._lose(key, "stopped")
            return None
        if view is None:
            if len(self._views) >= MAX_INSTANCES:
                metrics.DROPPED_MESSAGES.labels(reason="fleet_full").inc()
                return None
            view = self._views[key] = InstanceView(beat, self._clock.monotonic_s())
            log.debug("fleet_joined", peer_role=beat.role, peer=beat.instance)
        before, view.heartbeat = view.heartbeat, beat
        self._note_readiness(view, before)
        view.last_seen_s, view.excused_s = self._clock.monotonic_s(), 0.0
        view.next_s = min(MAX_NEXT_S, max(HEARTBEAT_S, beat.next_ms / 1e3))
        view.asked = view.suspect = False
        self._observe_clock(beat)
        if self._keeps_prefixes and beat.role in TARGET_ROLES:
            _apply_prefix_events(view, beat)
        if beat.reconnects != before.reconnects:
            self.on_reconnected(*key)
        if beat.state == "stalled" and before.state != "stalled":
            log.warning("fleet_stalled", peer_role=key[0], peer=key[1], stalled_ms=beat.stalled_ms)
            self._notify_lost(key, "suspect")
        return view

    def _note_readiness(self, view: InstanceView, before: Heartbeat) -> None:
        """One that is new, or that may take work now and could not, or the reverse, is another answer."""
        is_new = view.heartbeat is before
        if is_new or view.suspect or view.heartbeat.state != before.state:
            self._change()
        elif _announcement(view.heartbeat) != _announcement(before):
            self.announced += 1

    def _change(self) -> None:
        """The instances that can take work are others."""
        self._ready.clear()
        self.announced += 1

    def _observe_clock(self, beat: Heartbeat) -> None:
        sent = ClockReading(beat.sent_unix_us, beat.sent_steady_us)
        received = ClockReading.now(self._clock)
        self.offsets.observe(beat.instance, sent, received)
        if beat.role == "gateway":
            self.origins.observe(beat.instance, sent, received)
        show = self._show_skew.get(beat.instance)
        if show is None:
            show = self._show_skew[beat.instance] = metrics.CLOCK_SKEW.labels(origin=beat.instance).set
        show(self.offsets.skew_us(beat.instance) / 1e6)

    def anyone_silent(self) -> bool:
        """Return whether the next sweep would suspect somebody."""
        now_s = self._clock.monotonic_s()
        return any(not view.suspect and now_s >= view.silent_at_s for view in self._views.values())

    def next_silence_s(self) -> float:
        """Return how long nobody can become a suspect, or is overdue."""
        now_s = self._clock.monotonic_s()
        silences_s = (view.next_look_s for view in self._views.values() if not view.suspect)
        return min(silences_s, default=now_s + SUSPECT_AFTER_S) - now_s

    def first_silent(self, most: int) -> InstanceView | None:
        """Return who may be silent or overdue first; None among more than `most`, with nobody, and while a
        suspect is there, which is to be forgotten."""
        views = self._views.values()
        if not 0 < len(views) <= most or any(view.suspect for view in views):
            return None
        return min(views, key=attrgetter("next_look_s"))

    def overdue(self) -> list[InstanceView]:
        """Return those at rest whose heartbeat should be here: it may be lost, and they are asked before
        they are
        suspected."""
        now_s = self._clock.monotonic_s()
        return [view for view in self._views.values() if view.rests and now_s >= view.overdue_at_s]

    def expect(self, view: InstanceView) -> None:
        """It has been asked for a heartbeat, due now: it may be as late as any other."""
        view.asked = True
        view.next_s = self._clock.monotonic_s() - view.silent_since_s

    def sweep(self) -> None:
        """Suspect whose heartbeat was due long ago, forget whom FORGET_AFTER_S has not heard of."""
        now_s = self._clock.monotonic_s()
        for key, view in list(self._views.items()):
            silent_s = now_s - view.silent_since_s
            if now_s >= view.silent_at_s and not view.suspect:
                view.suspect = True
                self._change()
                log.warning("fleet_suspect", peer_role=key[0], peer=key[1], silent_s=round(silent_s, 3))
                self._notify_lost(key, "suspect")
            if silent_s >= FORGET_AFTER_S:
                self._forget(key)

    def excuse(self, seconds: float) -> None:
        """We ourselves could not listen for so long: nobody is blamed for that silence."""
        now_s = self._clock.monotonic_s()
        for view in self._views.values():
            if not view.suspect:
                view.excused_s = min(now_s - view.last_seen_s, view.excused_s + seconds)

    def apply_snapshot(
        self, role: str, instance: str, incarnation: int, page: Snapshot, bucket: int = 0
    ) -> int | None:
        """A page of an instance's prefix cache, asked for from `bucket` on; ignored when that life is over.

        Returns the bucket to ask for next, None when no page is missing. Between pages the events go on: they
        change what has come, and what comes later has them already.
        """
        view = self._views.get((role, instance))
        if view is None or view.heartbeat.incarnation != incarnation:
            return None
        if bucket == 0:
            view.prefix = set()
            view.prefix_event_id = page.prefix_event_id
            view.prefix_gap = False
        elif view.prefix_gap:
            return 0  # what has come is not what it was followed by
        elif page.prefix_event_id < view.prefix_event_id:
            return bucket  # events have overtaken it
        view.prefix.update(unpack_hashes(page.hashes))
        if page.next_bucket > bucket:
            return page.next_bucket
        view.prefix_stale = False
        return None

    # ---- inside ---------------------------------------------------------------------------------

    def _is_stale(self, view: InstanceView, beat: Heartbeat) -> bool:
        """Return whether it tells of what was before: a server of several that hung passes it on late."""
        if self._same_life(view, beat):
            return beat.sent_steady_us < view.heartbeat.sent_steady_us
        return beat.incarnation < view.heartbeat.incarnation and not view.suspect

    @staticmethod
    def _same_life(view: InstanceView, beat: Heartbeat) -> bool:
        return view.heartbeat.incarnation == beat.incarnation

    def _lose(self, key: tuple[str, str], why: str) -> None:
        """The instance is gone with all its state. A suspect was already reported, but its successor
        still has to be told apart, so it is reported again under the new reason."""
        self._forget(key)
        log.debug("fleet_lost", peer_role=key[0], peer=key[1], why=why)
        self._notify_lost(key, why)

    def _forget(self, key: tuple[str, str]) -> None:
        del self._views[key]
        self._change()
        self.offsets.forget(key[1])
        if key[0] == "gateway":
            self.origins.forget(key[1])
        self._show_skew.pop(key[1], None)
        try:
            metrics.CLOCK_SKEW.remove(key[1])
        except KeyError:
            log.debug("fleet_skew_never_measured", peer=key[1])

    def _notify_lost(self, key: tuple[str, str], why: str) -> None:
        for callback in self._on_lost:
            try:
                callback(*key, why)
            except Exception:  # one listener must not keep the others from hearing it
                log.exception("fleet_callback_failed", peer_role=key[0], peer=key[1], why=why)


def _apply_prefix_events(view: InstanceView, beat: Heartbeat) -> None:
    """Prefix events are set operations, so those that a snapshot already holds may come again.

    A gap: the beat's events begin after the last one we know, or the count went backwards.
    """
    added, removed = unpack_hashes(beat.worker.added), unpack_hashes(beat.worker.removed)
    first = beat.worker.prefix_event_id - len(added) - len(removed)
    if first > view.prefix_event_id or beat.worker.prefix_event_id < view.prefix_event_id:
        view.prefix_stale = view.prefix_gap = True
        return
    view.prefix.update(added)
    view.prefix.difference_update(removed)
    view.prefix_event_id = beat.worker.prefix_event_id
