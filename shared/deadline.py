"""Absolute deadlines: monotonic inside a process, microseconds of the gateway's steady clock on the wire.

A deadline travels with every message and only ever shrinks. Each process converts through its
measured offset to the gateway that stamped it (`ClockOffsets`).

A steady clock is the time of day at which its process began, moved on by the monotonic clock: whoever sets
the time of day of a machine, there or here, moves no deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from shared.errors import DeadlineExpired
from shared.seams.clock import SYSTEM_CLOCK, Clock

__all__ = [
    "MAX_SKEW_US",
    "NO_DEADLINE_US",
    "OFFSET_WINDOW",
    "SYSTEM_CLOCK",
    "Clock",
    "ClockOffsets",
    "ClockReading",
    "Deadline",
]

MAX_SKEW_US = 50_000
"""A time of day that is off by more marks the instance as skewed, in metrics and status."""

OFFSET_WINDOW = 32
"""Heartbeats per gateway over which the smallest transit time is taken."""

NO_DEADLINE_US = 0
"""The wire value of "no deadline"; only fire-and-forget fleet messages carry it."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment on this process's monotonic clock."""

    at_s: float

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return cls(clock.monotonic_s() + seconds)

    @classmethod
    def from_steady_us(cls, steady_us: int, offset_us: int = 0, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """`offset_us` = this process's steady clock minus the one that stamped `steady_us`."""
        return cls(clock.monotonic_s() + (steady_us + offset_us - clock.steady_us()) / 1e6)

    def to_steady_us(self, offset_us: int = 0, clock: Clock = SYSTEM_CLOCK) -> int:
        return clock.steady_us() - offset_us + round((self.at_s - clock.monotonic_s()) * 1e6)

    def remaining_s(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at_s - clock.monotonic_s())

    def expired(self, clock: Clock = SYSTEM_CLOCK) -> bool:
        return clock.monotonic_s() >= self.at_s

    def check(self, hop: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raise DeadlineExpired naming `hop` when there is no time left."""
        if self.expired(clock):
            raise DeadlineExpired(f"the deadline passed at {hop}; allow more time or send less work", hop=hop)

    def shrink(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The earlier of this deadline and `seconds` from now: how a hop takes its share."""
        return min(self, Deadline.after(seconds, clock))

    def timeout(self, clock: Clock = SYSTEM_CLOCK) -> asyncio.Timeout:
        """`async with deadline.timeout():` raises TimeoutError at the deadline."""
        return asyncio.timeout(self.remaining_s(clock))


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks of a process at one moment: its time of day, and its steady clock."""

    unix_us: int
    steady_us: int

    @classmethod
    def now(cls, clock: Clock = SYSTEM_CLOCK) -> ClockReading:
        return cls(clock.unix_us(), clock.steady_us())

    @property
    def set_by_us(self) -> int:
        """Return how far the time of day has been set on since the process began."""
        return self.unix_us - self.steady_us


class ClockOffsets:
    """This process's steady clock minus each gateway's, from the gateways' heartbeats.

    A heartbeat shows `offset + transit`, and transit is never negative, so the smallest difference
    of a window is the closest bound; on a LAN it errs by the fastest transit, well under 1 ms.

    Steady clocks are never set. So a time of day that was is told exactly from a slow heartbeat, by the
    next one that comes (`skew_us`).
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[int]] = {}
        self._set_by_us: dict[str, int] = {}

    def observe(self, origin: str, sent: ClockReading, received: ClockReading) -> None:
        window = self._samples.setdefault(origin, deque(maxlen=OFFSET_WINDOW))
        window.append(received.steady_us - sent.steady_us)
        self._set_by_us[origin] = received.set_by_us - sent.set_by_us

    def forget(self, origin: str) -> None:
        self._samples.pop(origin, None)
        self._set_by_us.pop(origin, None)

    def offset_us(self, origin: str) -> int:
        """0 for a gateway that has not been heard yet."""
        window = self._samples.get(origin)
        return min(window) if window else 0

    def skew_us(self, origin: str) -> int:
        """This process's time of day minus that of `origin`, as of its last heartbeat; 0 for one that has not
        been heard."""
        return self.offset_us(origin) + self._set_by_us.get(origin, 0)

    def skewed(self) -> tuple[str, ...]:
        """The origins whose time of day differs by more than MAX_SKEW_US."""
        return tuple(o for o in self._samples if abs(self.skew_us(o)) > MAX_SKEW_US)
