"""Try again what does not pay: seldom, and half as often each time that it fails."""

from __future__ import annotations

FIRST_AFTER = 64
"""The steps after which something is tried again for the first time."""
MOST_AFTER = 1024
"""The most steps between two tries: text changes, and so does who drafts."""


class Probes:
    """The tries of one thing that is left out."""

    __slots__ = ("_after", "_left_out")

    def __init__(self) -> None:
        self._after = FIRST_AFTER
        self._left_out = 0

    def is_due(self) -> bool:
        """Return whether it is tried in a step in which it would be left out; call once in each."""
        self._left_out += 1
        if self._left_out < self._after:
            return False
        self._left_out = 0
        self._after = min(2 * self._after, MOST_AFTER)
        return True

    def succeed(self) -> None:
        """It was of use: where it is left out again, it is soon tried."""
        self._after = FIRST_AFTER
        self._left_out = 0
