"""Show how far `penstock index` is: a bar that grows on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from services.cli.view.table import cut_to
from shared.retrieval.index.reading_progress import ReadSoFar

EVERY_S = 5.0
"""The time from one line to the next where lines stay."""
REDRAWN_EVERY_S = 0.1
"""The time between two drawings of what is read, which goes on document after document."""
BAR_CHARS = 20
MB = 1_000_000
ERASE_LINE_END = "\x1b[K"


class IndexProgressLine:
    def __init__(
        self,
        err: TextIO,
        *,
        redraws: bool,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._err = err
        self._columns = columns
        self._read_since_s: float | None = None
        self._redraws = redraws
        self._clock = clock
        self._began_s: float | None = None
        self._shown_s = -EVERY_S
        self._open = False

    @property
    def reads(self) -> bool:
        """Return whether reading has begun: no other process indexes the folder."""
        return self._read_since_s is not None

    @property
    def embeds(self) -> bool:
        """Return whether reading is over and embedding has begun."""
        return self._began_s is not None

    def show_reading(self, so_far: ReadSoFar) -> None:
        """Show how much has been read of what is to be, at which rate, and how long that takes yet."""
        now_s = self._clock()
        if self._read_since_s is None:
            self._read_since_s = now_s
        if not so_far.of_files or now_s - self._shown_s < (REDRAWN_EVERY_S if self._redraws else EVERY_S):
            return
        self._shown_s = now_s
        line = f"{so_far.files}/{so_far.of_files} files{_documents(so_far)}" + _rate(
            so_far.bytes / MB, so_far.of_bytes / MB, now_s - self._read_since_s, "MB", digits=1
        )
        if self._redraws:
            self._draw(f"reading {_bar(so_far.bytes, so_far.of_bytes)} {line}")
        else:
            self._err.write(f"reading {line}\n")
        self._err.flush()

    def show(self, done: int, total: int) -> None:
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        line = f"{done}/{total} passages{_rate(done, total, now_s - self._began_s, 'passages')}"
        if self._redraws:
            self._draw(f"embedding {_bar(done, total)} {line}")
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

    def _draw(self, line: str) -> None:
        """Put it in the place of the last one; a line that did not fit would be two, and stay."""
        self._err.write(f"\r{cut_to(line, max(1, self._columns() - 1))}{ERASE_LINE_END}")
        self._open = True


def _documents(so_far: ReadSoFar) -> str:
    """Say how many documents there are where files have several."""
    return f", {so_far.documents} documents" if so_far.documents > so_far.files + 1 else ""


def _bar(done: int, total: int) -> str:
    full = BAR_CHARS * done // max(1, total)
    return f"[{'#' * full}{'.' * (BAR_CHARS - full)}]"


def _rate(done: float, total: float, took_s: float, unit: str, *, digits: int = 0) -> str:
    if not done or took_s <= 0 or done == total:
        return ""
    per_s = done / took_s
    left_s = round((total - done) / per_s)
    return f", {per_s:.{digits}f} {unit}/s, {left_s // 60}:{left_s % 60:02} left"
