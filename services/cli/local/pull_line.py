"""Show how far `penstock pull` is: a line that is drawn anew on a terminal, one now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

EVERY_S = 5.0
"""The time from one line to the next where lines stay."""
REDRAWN_EVERY_S = 0.1
"""The time between two drawings."""
ERASE_LINE_END = "\x1b[K"


class PullLine:
    def __init__(self, err: TextIO, *, redraws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._err = err
        self._redraws = redraws
        self._clock = clock
        self._doing = ""
        self._began_s = self._shown_s = 0.0
        self._began_at = 0
        self._open = False

    def show(self, doing: str, done: int, total: int) -> None:
        """Show bytes that are done; what was here when the work began counts for no speed."""
        now_s = self._clock()
        if doing != self._doing:
            self.end()
            self._doing, self._began_s, self._began_at = doing, now_s, done
        elif done < total and now_s - self._shown_s < (REDRAWN_EVERY_S if self._redraws else EVERY_S):
            return
        self._shown_s = now_s
        speed = _speed(done - self._began_at, total - done, now_s - self._began_s)
        line = f"{doing} {done / 1e6:.1f} of {total / 1e6:.1f} MB{speed}"
        self._err.write(f"\r{line}{ERASE_LINE_END}" if self._redraws else f"{line}\n")
        self._err.flush()
        self._open = self._redraws

    def end(self) -> None:
        """End the line: what is written next begins on one of its own."""
        if self._open:
            self._err.write("\n")
            self._err.flush()
            self._open = False


def _speed(came: int, left: int, took_s: float) -> str:
    if came <= 0 or took_s <= 0:
        return ""
    per_s = came / took_s
    left_s = round(left / per_s)
    ahead = f", {left_s // 60}:{left_s % 60:02} left" if left else ""
    return f", {per_s / 1e6:.1f} MB/s{ahead}"
