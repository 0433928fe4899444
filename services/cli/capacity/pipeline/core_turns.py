"""The cores of one machine: small work goes first, computations take turns on what it leaves.

Workers of a machine agree on their threads (`shared/engine/native/core_arbiter.h`): beside prefill that
computes decode has half of the cores, the rest is prefill's, and each worker has one thread at least. Where
there are more threads than cores, the kernel gives them in turns. Linux has another thread go on at a tick of
the clock when one has had its slice (`kernel/sched/fair.c`): 1.4 ms on two cores, and ticks are 4 ms apart at
the usual CONFIG_HZ=250. Threads that compute step back for all others (`shared/process/niceness.py`), which
have little to do each time and so go first. The threads of one computation wait for each other after every
part of a layer: where one of them has no core, all of them stand still.
"""

from __future__ import annotations

from collections import deque

from services.cli.capacity.pipeline.cores import CoreUser, Done
from services.cli.capacity.pipeline.event_line import EventLine

TURN_S = 0.004
"""A turn on a core while others wait for it: a tick of Linux at CONFIG_HZ=250."""
LEAST_CORES = 1e-9
"""Differences of cores below this are rounding."""
ROUNDED = 1e-3
"""The part of a turn by which the time of a tick may be rounded: times of a rare load are large."""


class CoreTurns:
    """`Cores` of one machine."""

    __slots__ = ("_cores", "_held", "_line", "_queue", "_small", "_small_now", "_ticks", "_turn_s")
    stepwise = True

    def __init__(self, line: EventLine, cores: int, turn_s: float = TURN_S) -> None:
        self._line = line
        self._cores = cores
        self._turn_s = turn_s
        self._queue: list[CoreUser] = []
        """The computations under way; behind those that have cores stand those that wait for their turn."""
        self._small: deque[tuple[float, Done | None, tuple[object, ...]]] = deque()
        self._small_now = 0
        self._ticks = False
        self._held = False

    def compute(self, who: CoreUser, alone_s: float, done: Done) -> None:
        who.alone_s += alone_s
        who.left_s, who.done, who.expected = alone_s, done, False
        who.began_s = who.moved_s = self._line.now_s
        if who not in self._queue:
            self._queue.append(who)
            self._share()
        self._deal()

    def spend(self, cpu_s: float, done: Done | None = None, *given: object) -> None:
        if self._small_now >= self._cores:
            self._small.append((cpu_s, done, given))
            return
        self._small_now += 1
        self._line.at(self._line.now_s + cpu_s, self._end_small, done, given)
        self._deal()

    def _end_small(self, done: Done | None, given: tuple[object, ...]) -> None:
        self._held = True
        self._small_now -= 1
        if self._small:
            cpu_s, next_done, next_given = self._small.popleft()
            self._small_now += 1
            self._line.at(self._line.now_s + cpu_s, self._end_small, next_done, next_given)
        if done is not None:
            done(*given)
        self._held = False
        self._deal()

    def _end(self, who: CoreUser, version: int) -> None:
        if version != who.version or who.done is None:
            return
        who.took_s += self._line.now_s - who.began_s
        done, who.done = who.done, None
        self._held = True
        done()
        self._held = False
        if who.done is None:  # it has nothing else to compute
            self._queue.remove(who)
            self._share()
            who.granted = 0.0
            who.version += 1
        self._deal()

    def _tick(self) -> None:
        """Let those that wait go on, and those that computed stand behind them."""
        self._ticks = False
        served = sum(who.granted > 0 for who in self._queue)
        if served > 0 and len(self._queue) > 1:
            self._queue = self._queue[served:] + self._queue[:served]
        self._deal()

    def _deal(self) -> None:
        """Give the cores that small work leaves to computations, in their order."""
        if self._held:
            return
        free = float(self._cores - self._small_now)
        now_s, lacking = self._line.now_s, False
        for who in self._queue:
            granted = who.wanted
            if granted > free:
                granted, lacking = free if granted <= 1 else 0.0, True
            free -= granted
            if who.expected and granted == who.granted:
                continue
            who.left_s -= (now_s - who.moved_s) * who.granted / who.most_cores
            who.moved_s, who.granted, who.expected = now_s, granted, True
            who.version += 1
            if granted > LEAST_CORES:
                ends_s = now_s + max(0.0, who.left_s) * who.most_cores / granted
                self._line.at(ends_s, self._end, who, who.version)
        if lacking and not self._ticks and len(self._queue) > 1:
            self._ticks = True
            next_tick = int(now_s / self._turn_s + ROUNDED) + 1
            self._line.at(next_tick * self._turn_s, self._tick)

    def _share(self) -> None:
        """Tell all how many cores they may have, by who computes now."""
        first = sum(who.goes_first for who in self._queue)
        others = len(self._queue) - first
        taken = 0 if not first else (self._cores + 1) // 2 if others else self._cores
        first_threads = max(1, taken // max(1, first))
        other_threads = max(1, (self._cores - taken) // max(1, others))
        for who in self._queue:
            who.wanted = min(who.most_cores, first_threads if who.goes_first else other_threads)
