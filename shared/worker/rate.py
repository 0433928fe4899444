"""Measured and smoothed: tokens per second of busy time, and how long a step takes."""

from __future__ import annotations

MEMORY = 0.9
"""Weight of the past at each step: about ten steps."""


MEASURED_STEP_TOKENS = 64
"""The rate by which long prompts are predicted is that of steps with at least so many tokens."""


class TokenRate:
    """0 until the first observation. Idle time does not count: this is how fast work goes.

    Steps weigh by their tokens, and those of fewer than `least_tokens` do not count: they show what a step
    costs, not what its tokens do, and a long prompt would multiply that.
    """

    def __init__(self, least_tokens: int = 1) -> None:
        self._least_tokens = least_tokens
        self._tokens = 0.0
        self._busy_us = 0.0
        self.best_tokens_per_s = 0.0
        """The highest that it has been: slow steps of a busy machine do not hide what can be done."""

    def observe(self, tokens: int, busy_us: int) -> None:
        if tokens < self._least_tokens or busy_us <= 0:
            return
        self._tokens = MEMORY * self._tokens + tokens
        self._busy_us = MEMORY * self._busy_us + busy_us
        self.best_tokens_per_s = max(self.best_tokens_per_s, self.tokens_per_s)

    @property
    def tokens_per_s(self) -> float:
        return self._tokens * 1e6 / self._busy_us if self._busy_us else 0.0


class MeanTime:
    """The mean time of what happens again and again; 0 where nothing that still goes on has been seen."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, duration_us: int) -> None:
        now_s = duration_us / 1e6
        self.seconds = now_s if self.seconds == 0.0 else MEMORY * self.seconds + (1 - MEMORY) * now_s

    def forget(self) -> None:
        """The work is over, and says nothing of the next."""
        self.seconds = 0.0
