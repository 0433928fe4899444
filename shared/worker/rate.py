"""Measured and smoothed: tokens per second of busy time, and how long a step takes."""

from __future__ import annotations

MEMORY = 0.9
"""Weight of the past at each step: about ten steps."""


class TokenRate:
    """0 until the first observation. Idle time does not count: this is how fast work goes."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0

    def observe(self, tokens: int, busy_us: int) -> None:
        if tokens <= 0 or busy_us <= 0:
            return
        now = tokens * 1e6 / busy_us
        self.tokens_per_s = (
            now if self.tokens_per_s == 0.0 else MEMORY * self.tokens_per_s + (1 - MEMORY) * now
        )


class StepTime:
    """0 where no step of work that is still going on has been seen."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, step_us: int) -> None:
        now_s = step_us / 1e6
        self.seconds = now_s if self.seconds == 0.0 else MEMORY * self.seconds + (1 - MEMORY) * now_s

    def forget(self) -> None:
        """The work is over, and says nothing of the next."""
        self.seconds = 0.0
