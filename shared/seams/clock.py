"""The clocks of a process. To read one costs what the system's own costs; a simulation stands in for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from shared.seams.replacement import replaced


class Clock(Protocol):
    """Time as the process sees it; tests pass a fake one."""

    def monotonic_s(self) -> float: ...
    def unix_us(self) -> int: ...
    def steady_us(self) -> int: ...


class TimeSource(Clock, Protocol):
    """All that SystemClock can be asked."""

    def monotonic_ns(self) -> int: ...
    def thread_cpu_ns(self) -> int: ...


class SystemClock:
    """The clocks of this machine: attributes, so that no call stands between who reads one and the system."""

    __slots__ = ("monotonic_ns", "monotonic_s", "steady_us", "thread_cpu_ns", "unix_us")

    monotonic_s: Callable[[], float]
    monotonic_ns: Callable[[], int]
    thread_cpu_ns: Callable[[], int]
    """The CPU time of the thread that asks: what else the machine does is not in it."""
    unix_us: Callable[[], int]
    """The time of day, which may be set."""
    steady_us: Callable[[], int]
    """The time of day as it was when this clock was made, moved on by the monotonic clock."""

    def __init__(self) -> None:
        began_us = (time.time_ns() - time.monotonic_ns()) // 1000
        self.monotonic_s = time.monotonic
        self.monotonic_ns = time.monotonic_ns
        self.thread_cpu_ns = time.thread_time_ns
        self.unix_us = lambda: time.time_ns() // 1000
        self.steady_us = lambda: began_us + time.monotonic_ns() // 1000

    def replaced_by(self, source: TimeSource) -> AbstractContextManager[None]:
        """Read `source` in this block, whoever reads: also who has taken hold of this clock before."""
        return replaced(self, self.__slots__, source)


SYSTEM_CLOCK = SystemClock()
