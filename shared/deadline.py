"""Absolute deadlines: monotonic inside a process, unix microseconds of the gateway's clock on the wire.

A deadline travels with every message and only ever shrinks. Each process converts through its
measured offset to the gateway that stamped it (`ClockOffsets`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from shared.errors import DeadlineExpired

MAX_SKEW_US = 50_000
"""An offset above this marks the instance as skewed, in metrics and status."""

OFFSET_WINDOW = 32
"""Heartbeats per gateway over which the smallest transit time is taken."""

NO_DEADLINE_US = 0
"""The wire value of "no deadline"; only fire-and-forget fleet messages carry it."""


class Clock(Protocol):
    """Time as the process sees it; tests pass a fake one."""

    def monotonic_s(self) -> float: ...
    def unix_us(self) -> int: ...


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_us(self) -> int:
        return time.time_ns() // 1000


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment on this process's monotonic clock."""

    at_s: float

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return cls(clock.monotonic_s() + seconds)

    @classmethod
    def from_unix_us(cls, unix_us: int, offset_us: int = 0, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """`offset_us` = this process's clock minus the clock that stamped `unix_us`."""
        return cls(clock.monotonic_s() + (unix_us + offset_us - clock.unix_us()) / 1e6)

    def to_unix_us(self, offset_us: int = 0, clock: Clock = SYSTEM_CLOCK) -> int:
        return clock.unix_us() - offset_us + round((self.at_s - clock.monotonic_s()) * 1e6)

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


class ClockOffsets:
    """This process's clock minus each gateway's, from the gateways' heartbeats.

    A heartbeat shows `offset + transit`, and transit is never negative, so the smallest difference
    of a window is the closest bound; on a LAN it errs by the fastest transit, well under 1 ms.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[int]] = {}

    def observe(self, origin: str, sent_unix_us: int, received_unix_us: int) -> None:
        window = self._samples.setdefault(origin, deque(maxlen=OFFSET_WINDOW))
        window.append(received_unix_us - sent_unix_us)

    def forget(self, origin: str) -> None:
        self._samples.pop(origin, None)

    def offset_us(self, origin: str) -> int:
        """0 for a gateway that has not been heard yet."""
        window = self._samples.get(origin)
        return min(window) if window else 0

    def skewed(self) -> tuple[str, ...]:
        """The origins whose clock differs by more than MAX_SKEW_US."""
        return tuple(o for o in self._samples if abs(self.offset_us(o)) > MAX_SKEW_US)
