"""Show what a model thinks before it answers: apart from the answer, and dimmed where that can be."""

from __future__ import annotations

import os
from typing import TextIO

from services.cli.view.terminal_text import escaped_controls

DIM = "\x1b[2m"
UNDIMMED = "\x1b[22m"


class ReasoningView:
    """A view that writes to `out`, which is not where the answer goes: a pipe gets that alone. Nothing is
    dimmed where NO_COLOR is set."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._dims = self._is_terminal and not os.environ.get("NO_COLOR")
        self._last = ""
        """The last piece; "" while there is none that has not been ended."""

    def add(self, text: str) -> None:
        """Show more of it."""
        shown = escaped_controls(text) if self._is_terminal else text
        self._out.write(f"{DIM}{shown}{UNDIMMED}" if self._dims else shown)
        self._out.flush()
        self._last = text

    def end(self) -> None:
        """End it: the answer that follows begins on a line of its own."""
        if self._last:
            self._out.write("\n" if self._last.endswith("\n") else "\n\n")
            self._out.flush()
            self._last = ""
