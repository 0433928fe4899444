"""Track the load that this gateway has sent, before heartbeats show it.

What it has sent, so that it does not herd; and what of that has ended, so that who asks again at once finds
the place free.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.gateway.fleet.sent_prefixes import SentPrefixes
from shared.bus.fleet import InstanceView
from shared.bus.heartbeats.repeated_beats import beat_with
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import Heartbeat

FORGOTTEN_AFTER_S = 5.0
"""An answer that did not come by then will not: asks are bounded by less."""
MOST_SHOWN = 1024
"""The most instances whose views are kept, as many as a fleet has."""


@dataclass(slots=True, eq=False)
class Load:
    """One route's part at one instance. `answered_s`: when it said yes or no, None until then."""

    role: str
    instance: str
    tokens: int
    blocks: int
    sent_s: float
    answered_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """An instance as its next heartbeat will show it."""

    view: InstanceView
    heartbeat: Heartbeat

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return self.view.overlap(block_hashes)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The view that was made of one heartbeat; with the time, loads that nobody answers are forgotten."""

    loaded: LoadedView
    beat: Heartbeat
    seen_s: float
    until_s: float

    def is_of(self, view: InstanceView, now_s: float) -> bool:
        same = self.loaded.view is view and self.beat is view.heartbeat and self.seen_s == view.last_seen_s
        return same and now_s < self.until_s


class SentLoad:
    """A load counts until its instance has answered and a heartbeat has come after that.

    Workers beat on every change, so the first heartbeat behind an answer counts the request in.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.prefixes = SentPrefixes(clock)
        self._sent: defaultdict[tuple[str, str], list[Load]] = defaultdict(list)
        self._ended_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._shown: dict[tuple[str, str], _Shown] = {}
        """The view made last of each instance: a request asks ten times, and little has changed between."""

    def add(self, role: str, instance: str, *, tokens: int = 0, blocks: int = 0) -> Load:
        """The instance is asked to take a request."""
        load = Load(role, instance, tokens, blocks, self._clock.monotonic_s())
        self._sent[role, instance].append(load)
        self._shown.pop((role, instance), None)
        return load

    def took(self, load: Load) -> None:
        """The instance has the request; its next heartbeat says so."""
        load.answered_s = self._clock.monotonic_s()

    def drop(self, load: Load) -> None:
        """The instance does not have the request."""
        loads = self._sent[load.role, load.instance]
        if load in loads:
            loads.remove(load)
            self._shown.pop((load.role, load.instance), None)

    def end(self, role: str, instance: str) -> None:
        """A request that the instance had has finished there."""
        now_s = self._clock.monotonic_s()
        recent = [at_s for at_s in self._ended_s[role, instance] if at_s > now_s - FORGOTTEN_AFTER_S]
        self._ended_s[role, instance] = [*recent, now_s]
        self._shown.pop((role, instance), None)

    def with_sent(self, view: InstanceView) -> LoadedView:
        """The view with what was sent, or has ended, and is not in the heartbeat that it shows."""
        beat = view.heartbeat
        key = beat.role, beat.instance
        shown = self._shown.get(key)
        if shown is not None and shown.is_of(view, self._clock.monotonic_s()):
            return shown.loaded
        loads = self._unreported(beat.role, beat.instance, view.last_seen_s)
        ended = self._unreported_ends(beat.role, beat.instance, view.last_seen_s)
        loaded = self._loaded(view, loads, ended)
        if len(self._shown) >= MOST_SHOWN:
            self._shown.clear()
        oldest_s = min((load.sent_s for load in loads), default=math.inf)
        self._shown[key] = _Shown(loaded, beat, view.last_seen_s, oldest_s + FORGOTTEN_AFTER_S)
        return loaded

    def _loaded(self, view: InstanceView, loads: Sequence[Load], ended: Sequence[float]) -> LoadedView:
        beat = view.heartbeat
        if not loads and not ended:
            return LoadedView(view, beat)
        live = _live_after(beat.live, loads, ended)
        sent_tokens = sum(load.tokens for load in loads)
        queued_tokens = beat.worker.queued_tokens + sent_tokens
        worker = replace(
            beat.worker,
            queued_tokens=queued_tokens if live else 0,  # those of a prompt that has ended are computed
            due_tokens=tuple(tokens + sent_tokens for tokens in beat.worker.due_tokens),
            kv_blocks_free=beat.worker.kv_blocks_free - sum(load.blocks for load in loads),
        )
        return LoadedView(view, beat_with(beat, live=live, worker=worker))

    def _unreported(self, role: str, instance: str, seen_s: float) -> list[Load]:
        loads = self._sent.get((role, instance))
        if not loads:
            return []
        oldest_s = self._clock.monotonic_s() - FORGOTTEN_AFTER_S
        left = [
            load
            for load in loads
            if load.sent_s > oldest_s and (load.answered_s is None or load.answered_s >= seen_s)
        ]
        if left:
            self._sent[role, instance] = left
        else:
            del self._sent[role, instance]
        return left

    def _unreported_ends(self, role: str, instance: str, seen_s: float) -> list[float]:
        ends = self._ended_s.get((role, instance))
        if not ends:
            return []
        left = [ended_s for ended_s in ends if ended_s >= seen_s]
        if left:
            self._ended_s[role, instance] = left
        else:
            del self._ended_s[role, instance]
        return left


def _live_after(live: int, loads: Sequence[Load], ended_s: Sequence[float]) -> int:
    """Return how many are live after these loads and ends, taken in the order in which they came.

    A heartbeat may overtake the end that it tells of, so an end takes away nothing where nobody is live: what
    is sent after it counts in full.
    """
    if not loads:
        return max(0, live - len(ended_s))
    starts = [(load.sent_s, 1) for load in loads]
    ends = [(at_s, -1) for at_s in ended_s]
    for _, change in sorted([*starts, *ends], key=lambda event: (event[0], -event[1])):
        live = max(0, live + change)
    return live
