"""Stand for one process of a simulated world: its clocks, its chance, what is ready in it, if it runs."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import events
from collections import deque
from collections.abc import Mapping
from contextvars import Context, ContextVar
from enum import Enum
from random import Random
from typing import Any

NANOSECONDS = 1_000_000_000
BILLION = 1_000_000_000
LONGEST_UPTIME_S = 1_000_000
"""Monotonic clocks of nodes begin anywhere before this: none may be taken for that of another node."""
WORLD_BEGAN_UNIX_US = 1_700_000_000_000_000
"""The time of day at which every world begins."""

NODE: ContextVar[Node] = ContextVar("simulated_node")
"""The node that what runs now belongs to."""


class NodeState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    CRASHED = "crashed"


class Node:
    """`skew_s`: how far its time of day is ahead. `drift_ppb`: by how many billionths its clocks are fast.

    What is ready in it is called in the order in which it became ready, as an event loop promises; between
    two nodes there is no order.
    """

    def __init__(
        self, name: str, random: Random, now_ns: int, *, skew_s: float = 0.0, drift_ppb: int = 0
    ) -> None:
        if drift_ppb <= -BILLION:
            raise ValueError(
                f"drift_ppb of {name} is {drift_ppb}: its clock would stand still; set it above -1e9"
            )
        self.name = name
        self.random = random
        self.state = NodeState.RUNNING
        self.ready: deque[events.Handle] = deque()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.missed: list[events.Handle] = []
        """The steps of tasks that a crash has kept from coming: with them the tasks end with the world."""
        self.left: list[asyncio.Task[Any]] = []
        """What a crash has stopped where it was: kept, so that no garbage collection lets it go on."""
        self._drift_ppb = drift_ppb
        self._base_ns = random.randrange(LONGEST_UPTIME_S) * NANOSECONDS
        self._set_us = 0
        began_us = WORLD_BEGAN_UNIX_US + now_ns // 1000 + round(skew_s * 1e6)
        self._steady_base_us = began_us - self.monotonic_ns(now_ns) // 1000
        self.context = Context()
        self.context.run(NODE.set, self)

    # ---- clocks -----------------------------------------------------------------------------------

    def monotonic_ns(self, world_ns: int) -> int:
        """Return what its monotonic clock says when the world's is at `world_ns`."""
        return self._base_ns + world_ns + world_ns * self._drift_ppb // BILLION

    def monotonic_s(self, world_ns: int) -> float:
        """The same in seconds."""
        return (self._base_ns + world_ns + world_ns * self._drift_ppb // BILLION) / NANOSECONDS

    def world_ns(self, monotonic_s: float) -> int:
        """Return the first moment of the world at which its monotonic clock is not before `monotonic_s`."""
        own_ns = round((monotonic_s - self._base_ns / NANOSECONDS) * NANOSECONDS)
        found_ns = own_ns * BILLION // (BILLION + self._drift_ppb)
        while self.monotonic_ns(found_ns) / NANOSECONDS < monotonic_s:
            found_ns += 1
        return found_ns

    def steady_us(self, world_ns: int) -> int:
        return self._steady_base_us + self.monotonic_ns(world_ns) // 1000

    def unix_us(self, world_ns: int) -> int:
        """Its time of day, as it began and has been set on since."""
        return self.steady_us(world_ns) + self._set_us

    def set_time_of_day(self, by_s: float) -> None:
        """Somebody sets its time of day on, or back."""
        self._set_us += round(by_s * 1e6)

    # ---- life -------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return self.state is NodeState.RUNNING

    def pause(self) -> None:
        """Stop it, as SIGSTOP or a hung machine does: its time passes, and it gets to nothing."""
        if self.runs:
            self.state = NodeState.PAUSED

    def resume(self) -> None:
        if self.state is NodeState.PAUSED:
            self.state = NodeState.RUNNING

    def crash(self) -> None:
        """Kill it: nothing of it runs any more, also nothing that would clean up."""
        self.state = NodeState.CRASHED
        self.missed += self.ready
        self.ready.clear()
        self.left = sorted((task for task in self.tasks if not task.done()), key=hash)
        for task in self.left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own


def counted(names: Mapping[str, int]) -> str:
    """`names` by how often, most often first, as a part of a sentence."""
    often = sorted(names.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {count} times" for name, count in often)
