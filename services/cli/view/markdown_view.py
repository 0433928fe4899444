"""Markdown that streams into a terminal: what is complete is written for good, the block that still grows is
shown again in its place.

Only lines that differ are written again, and all of a change in one piece: nothing flickers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from services.cli.view.live_text import ERASE_BELOW, ERASE_LINE_END, UP
from services.cli.view.terminal_markdown import blocks_of, render_lines, split_at_last_block
from services.cli.view.terminal_text import escaped_controls

SHARE = 0.25
"""The largest share of the time that goes into showing a growing block; what comes meanwhile waits for the
next."""


class MarkdownView:
    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._out = out
        self._clock = clock
        self._console = Console(file=out, highlight=False)
        self._growing = ""
        self._begun = False
        """Whether a block is complete, and a blank line is due before the next."""
        self._live: list[str] = []
        """The lines of the growing block that stand on the screen, above the cursor."""
        self._cut = False
        """They are not all of it: the screen has no more."""
        self._due_s = 0.0

    def add(self, text: str) -> None:
        done, self._growing = split_at_last_block(self._growing + _cleaned(text))
        began_s = self._clock()
        if done or began_s >= self._due_s:
            self._show(blocks_of(done), blocks_of(self._growing))
            self._due_s = began_s + (self._clock() - began_s) / SHARE

    def end(self) -> None:
        """Write all that has come; the cursor then stands on a line of its own."""
        self._show(blocks_of(self._growing), [])
        self._growing, self._begun = "", False

    def _show(self, done: list[str], growing: list[str]) -> None:
        size = shutil.get_terminal_size()
        self._console.width = max(1, size.columns - 1)
        final = self._lines(done, begun=self._begun)
        self._begun = self._begun or bool(final)
        height = max(1, size.lines - 1)
        live = self._lines(growing, begun=self._begun)
        live, cut = [self._cut_line(line) for line in live[-height:]], len(live) > height
        kept = 0 if self._cut else _common_length(self._live, [*final, *live])
        back = len(self._live) - kept
        lines = "".join(map(self._ended, [*final, *live][kept:]))
        self._out.write((UP.format(lines=back) if back else "\r") + lines + ERASE_BELOW)
        self._out.flush()
        self._live, self._cut = live, cut

    def _lines(self, blocks: list[str], *, begun: bool) -> list[str]:
        """Return the lines, with a blank one between two blocks."""
        lines: list[str] = []
        for block in blocks:
            rendered = render_lines(self._console, block)
            lines += ["", *rendered] if rendered and (lines or begun) else rendered
        return lines

    def _cut_line(self, line: str) -> str:
        """Cut a line to the terminal's width: only code is longer."""
        text = Text.from_ansi(line)
        if text.cell_len <= self._console.width:
            return line
        with self._console.capture() as written:
            self._console.print(text, end="", no_wrap=True, overflow="crop", crop=True)
        return written.get()

    def _ended(self, line: str) -> str:
        """A line that the terminal wraps overwrites what stands below; at its end nothing may be erased: the
        cursor can still stand on its last character."""
        if Text.from_ansi(line).cell_len > self._console.width:
            return f"{ERASE_BELOW}{line}\n"
        return f"{line}{ERASE_LINE_END}\n"


def _cleaned(text: str) -> str:
    """Nobody's text is to move the cursor."""
    return escaped_controls(text.replace("\r", ""))


def _common_length(before: list[str], after: list[str]) -> int:
    differs = (number for number, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    return next(differs, min(len(before), len(after)))
