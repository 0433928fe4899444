"""Text that is shown again and again: in its old place on a terminal, one after another elsewhere."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from services.cli.view.table import cut_to

ERASE_LINE_END = "\x1b[K"
ERASE_BELOW = "\x1b[J"
UP = "\x1b[{lines}F"
"""The escape to the beginning of the line so many lines above."""


def redraws_text(out: TextIO) -> bool:
    """Whether `out` is a terminal that text can be shown in again."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class LiveText:
    """`redraws`: `out` is a terminal. What does not fit into it is cut, since lines that wrap or scroll out
    of it have no place to go back to."""

    def __init__(self, out: TextIO, *, redraws: bool) -> None:
        self._out = out
        self._redraws = redraws
        self._height = 0

    def show(self, text: str) -> None:
        if self._redraws:
            lines = _fitting(text.splitlines())
            above = UP.format(lines=self._height) if self._height else ""
            self._height = len(lines)
            self._out.write(above + "".join(f"{line}{ERASE_LINE_END}\n" for line in lines) + ERASE_BELOW)
        else:
            self._out.write(text + "\n")
        self._out.flush()


def _fitting(lines: list[str]) -> list[str]:
    """The terminal's width less one column, its height less the line of the cursor."""
    size = shutil.get_terminal_size()
    height = max(1, size.lines - 1)
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
    return [cut_to(line, max(1, size.columns - 1)) for line in lines]
