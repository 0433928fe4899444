"""Choose how many tokens to ask a drafter for, from how often its guesses were right. Pure."""

from __future__ import annotations

MEMORY = 0.8
"""Weight of the past in the acceptance average: about five observations."""
STARTING_RATE = 0.6
MIN_RATE = 0.15
"""Below this, verifying guesses costs more than the right ones save."""
PROBE_TOKENS = 2
PROBE_AFTER_STEPS = 32
"""A request whose drafts are off asks again this often: text changes, and so does what it repeats."""


class DraftLength:
    """Per request. `longest` is the configured draft length; 0 turns drafts off."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.rate = STARTING_RATE
        self._steps_off = 0

    def observe(self, proposed: int, accepted: int) -> None:
        """A verified draft, or with accepted=0 one that came too late to be of use."""
        if proposed > 0:
            self.rate = MEMORY * self.rate + (1 - MEMORY) * accepted / proposed

    def next(self, limit: int) -> int:
        """Tokens to ask for after this step; `limit` is what the batch leaves room for."""
        if limit <= 0 or self._longest == 0:
            return 0
        if self.rate >= MIN_RATE:
            self._steps_off = 0
            return max(1, min(limit, self._longest, round(self.rate * self._longest + 0.5)))
        self._steps_off += 1
        if self._steps_off < PROBE_AFTER_STEPS:
            return 0
        self._steps_off = 0
        return min(PROBE_TOKENS, limit, self._longest)
