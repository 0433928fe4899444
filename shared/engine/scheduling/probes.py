"""Try again what does not pay: in a step now and then, and half as often each time that it fails."""

from __future__ import annotations

FIRST_AFTER = 64
"""The steps after which something is tried again for the first time."""
MOST_AFTER = 1024
"""The most steps between two tries: text changes, and so does who drafts."""


class Probes:
    """The tries of one thing, for all sequences together: where each had its own, those that are over before
    they have one would never find out that it pays by now.

    A try that is due waits for a step in which something is left out, and is one for all that are left out in
    that step."""

    __slots__ = ("_after", "_is_used", "_steps")

    def __init__(self) -> None:
        self._after = FIRST_AFTER
        self._steps = 0
        self._is_used = False

    def begin_step(self) -> None:
        """Count a step. Call it before each."""
        if self._is_used:
            self._is_used = False
            self._steps = 0
            self._after = min(2 * self._after, MOST_AFTER)
        self._steps += 1

    def is_due(self) -> bool:
        """Return whether what this step would leave out is tried in it."""
        if self._steps >= self._after:
            self._is_used = True
        return self._is_used

    def succeed(self) -> None:
        """It was of use: where it is left out again, it is soon tried."""
        self._after = FIRST_AFTER
