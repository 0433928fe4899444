"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Satisfies shared.deadline.Clock."""

    def __init__(self, monotonic_s: float = 1000.0, unix_us: int = 1_700_000_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._unix_us = self._steady_us = unix_us

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def unix_us(self) -> int:
        return self._unix_us

    def steady_us(self) -> int:
        return self._steady_us

    def advance(self, seconds: float) -> None:
        self._monotonic_s += seconds
        self._unix_us += round(seconds * 1e6)
        self._steady_us += round(seconds * 1e6)

    def set_on(self, seconds: float) -> None:
        """Somebody sets the time of day."""
        self._unix_us += round(seconds * 1e6)
