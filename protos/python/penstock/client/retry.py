"""Decide when a call that was shed, or that nobody took up, is sent again. Pure: the caller waits."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from penstock.client.errors import Dropped, PenstockError, Shed, Unavailable

GATEWAY_STOPPING = "gateway_stopping"
"""The code of a stream whose gateway ends: another one goes on with it."""
RESUME_WAIT_S = 0.1
"""The pause before a stream is gone on with for the second time; it doubles with each further one."""
MAX_RESUME_WAIT_S = 2.0
"""The longest such pause: a stream is kept for thirty seconds."""
JITTER_SHARE = 0.25
"""A retry waits at most this much longer than the hint: else all who were shed together come back
together."""


@dataclass(frozen=True, slots=True)
class Retry:
    """`attempts` counts the first one: 1 is no retry. A longer hint than `max_wait_s` is not waited for.
    `resumes`: how often in a row it is tried to go on with a stream whose gateway is gone; 0: never."""

    attempts: int = 4
    max_wait_s: float = 30.0
    resumes: int = 8

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.max_wait_s < 0 or self.resumes < 0:
            raise ValueError("attempts is 1 or more, max_wait_s and resumes are not negative")

    def wait_s(self, error: PenstockError, attempt: int, remaining_s: float | None) -> float | None:
        """Return how long to wait after failed `attempt` (counted from 1); None: the call ends with the
        error."""
        if isinstance(error, Dropped) and attempt < self.attempts:
            return 0.0
        if not isinstance(error, Shed) or error.retry_after_ms <= 0 or attempt >= self.attempts:
            return None
        hint_s = error.retry_after_ms / 1000
        if hint_s > self.max_wait_s or (remaining_s is not None and hint_s >= remaining_s):
            return None
        return hint_s * (1 + JITTER_SHARE * random.random())  # noqa: S311 - to spread load, not to hide anything

    def resume_wait_s(self, error: PenstockError, tried: int, remaining_s: float | None) -> float | None:
        """Return how long to wait before a broken stream is gone on with, after so many tries that brought
        nothing; None: it ends with the error. What a server says of the request is no broken stream, but of a
        try it may say when to come back."""
        if tried and isinstance(error, Shed | Dropped):
            return self.wait_s(error, tried, remaining_s)
        told = error.end is not None and error.code != GATEWAY_STOPPING
        told = told and not (tried and error.retry_after_ms)
        if not isinstance(error, Unavailable) or told or tried >= self.resumes:
            return None
        wait_s = min(MAX_RESUME_WAIT_S, RESUME_WAIT_S * 2 ** (tried - 1)) if tried else 0.0
        return None if remaining_s is not None and wait_s >= remaining_s else wait_s


class CallClock:
    """The time left of a call's deadline; None: it has none of its own."""

    def __init__(self, deadline_s: float | None) -> None:
        self._ends_s = None if deadline_s is None else time.monotonic() + deadline_s

    @property
    def remaining_s(self) -> float | None:
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())
