"""Decide when a call that was shed is sent again. Pure: the caller waits."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from penstock.client.errors import PenstockError, Shed

JITTER_SHARE = 0.25
"""A retry waits at most this much longer than the hint: else all who were shed together come back
together."""


@dataclass(frozen=True, slots=True)
class Retry:
    """`attempts` counts the first one: 1 is no retry. A longer hint than `max_wait_s` is not waited for."""

    attempts: int = 4
    max_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.max_wait_s < 0:
            raise ValueError("attempts is 1 or more and max_wait_s not negative")

    def wait_s(self, error: PenstockError, attempt: int, remaining_s: float | None) -> float | None:
        """Return how long to wait after failed `attempt` (counted from 1); None: the call ends with the
        error."""
        if not isinstance(error, Shed) or error.retry_after_ms <= 0 or attempt >= self.attempts:
            return None
        hint_s = error.retry_after_ms / 1000
        if hint_s > self.max_wait_s or (remaining_s is not None and hint_s >= remaining_s):
            return None
        return hint_s * (1 + JITTER_SHARE * random.random())  # noqa: S311 - to spread load, not to hide anything


class CallClock:
    """The time left of a call's deadline; None: it has none of its own."""

    def __init__(self, deadline_s: float | None) -> None:
        self._ends_s = None if deadline_s is None else time.monotonic() + deadline_s

    @property
    def remaining_s(self) -> float | None:
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())
