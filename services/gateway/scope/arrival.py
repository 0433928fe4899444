"""The moment a call came: its deadlines count from then on, whatever stands between it and a request."""

from __future__ import annotations

from contextvars import ContextVar

from shared.deadline import SYSTEM_CLOCK, Clock

_arrived_s: ContextVar[float] = ContextVar("arrived_s")
"""Set in the task of a call as soon as there is one."""


def note_arrival(clock: Clock = SYSTEM_CLOCK) -> None:
    """The call of this task has come now: its head is here, and its message or body may be on its way."""
    _arrived_s.set(clock.monotonic_s())


def arrived_s(clock: Clock = SYSTEM_CLOCK) -> float:
    """Return when the call of this task came, on the monotonic clock; now where nobody noted it."""
    return _arrived_s.get(clock.monotonic_s())
