"""Watch what has to move: an engine's calls, an actor's turns, the event loop."""

from __future__ import annotations

import asyncio


class Activity:
    """Something of this process that has to move as long as it is busy.

    Written where the work is done, read by the watchdog's thread; neither waits for the other.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.moved = 0
        """Counts what is done."""
        self._begun = 0  # each of the two has one writer, which may be different threads
        self._ended = 0

    @property
    def busy(self) -> bool:
        return self._begun > self._ended

    def begin(self) -> None:
        """There is a piece of work."""
        self._begun += 1

    def move(self) -> None:
        """A part of it is done."""
        self.moved += 1

    def end(self) -> None:
        """It is done."""
        self.moved += 1
        self._ended += 1

    def prod(self) -> None:
        """Ask, at each look, what has nothing to do unless it is asked."""


class LoopActivity(Activity):
    """An event loop: each look asks it for a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("the event loop")
        self._loop = loop

    def prod(self) -> None:
        if not self.busy:
            self.begin()
            self._loop.call_soon_threadsafe(self.end)
