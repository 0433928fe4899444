"""Show how far `penstock index` is: a bar that grows on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

EVERY_S = 5.0
"""The time from one line to the next where lines stay."""
REDRAWN_EVERY_S = 0.1
"""The time between two drawings of what is read, which goes on document after document."""
BAR_CHARS = 20
ERASE_LINE_END = "\x1b[K"


class IndexProgressLine:
    def __init__(self, err: TextIO, *, redraws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._err = err
        self._redraws = redraws
        self._clock = clock
        self._began_s: float | None = None
        self._shown_s = -EVERY_S
        self._open = False

    @property
    def embeds(self) -> bool:
        """Return whether reading is over and embedding has begun."""
        return self._began_s is not None

    def show_reading(self, documents: int) -> None:
        """Show how many files have been read."""
        now_s = self._clock()
        if not documents or now_s - self._shown_s < (REDRAWN_EVERY_S if self._redraws else EVERY_S):
            return
        self._shown_s = now_s
        line = f"read {documents} documents"
        self._err.write(f"\r{line}{ERASE_LINE_END}" if self._redraws else f"{line}\n")
        self._err.flush()
        self._open = self._redraws

    def show(self, done: int, total: int) -> None:
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        line = f"{done}/{total} passages{_speed(done, total, now_s - self._began_s)}"
        if self._redraws:
            self._err.write(f"\rembedding {_bar(done, total)} {line}{ERASE_LINE_END}")
            self._open = True
        elif done == total or now_s - self._shown_s >= EVERY_S:
            self._err.write(f"embedding {line}\n")
            self._shown_s = now_s
        self._err.flush()

    def end(self) -> None:
        """End the bar: what is written next begins on a line of its own."""
        if self._open:
            self._err.write("\n")
            self._err.flush()
            self._open = False


def _bar(done: int, total: int) -> str:
    full = BAR_CHARS * done // max(1, total)
    return f"[{'#' * full}{'.' * (BAR_CHARS - full)}]"


def _speed(done: int, total: int, took_s: float) -> str:
    if not done or took_s <= 0 or done == total:
        return ""
    per_s = done / took_s
    left_s = round((total - done) / per_s)
    return f", {per_s:.0f} per second, {left_s // 60}:{left_s % 60:02} left"
