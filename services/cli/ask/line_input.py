"""Read messages that a person types into `penstock chat`.

A block between two lines of three quotation marks is one message, whatever it holds.
"""

from __future__ import annotations

import os
import sys
from typing import Protocol, TextIO

PROMPT = "> "
MORE_PROMPT = "… "
BLOCK_MARK = '"""'


class LineInput(Protocol):
    """Gives what is typed."""

    def read(self) -> str:
        """Return the next message. Raises EOFError at the end, KeyboardInterrupt for a Ctrl-C, and
        UnicodeDecodeError for what is no text."""


class PlainInput:
    """Lines as they come, from a pipe or a terminal that can do no more; prompts are for a terminal alone."""

    def __init__(self, *, prompts: bool) -> None:
        self._prompts = prompts

    def read(self) -> str:
        text = input(PROMPT if self._prompts else "")
        while is_open_block(text):
            text += "\n" + input(MORE_PROMPT if self._prompts else "")
        return block_text(text)


def is_open_block(text: str) -> bool:
    """Return whether a block has begun in `text` and not ended."""
    begun = text.lstrip()
    return begun.startswith(BLOCK_MARK) and not _ends_block(begun)


def block_text(text: str) -> str:
    """Return what stands in a whole block, and any other text as it is."""
    begun = text.strip()
    if not (begun.startswith(BLOCK_MARK) and _ends_block(begun)):
        return text
    return begun[len(BLOCK_MARK) : -len(BLOCK_MARK)].strip("\n")


def edits_lines(source: TextIO, shown: TextIO) -> bool:
    """Return whether both are a terminal that lines can be edited in."""
    return source.isatty() and shown.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _ends_block(begun: str) -> bool:
    return len(begun.rstrip()) >= 2 * len(BLOCK_MARK) and begun.rstrip().endswith(BLOCK_MARK)


def line_input() -> LineInput:
    """Return an editor where the terminal can show one, and plain lines elsewhere."""
    if not edits_lines(sys.stdin, sys.stdout):
        return PlainInput(prompts=sys.stdin.isatty())
    from services.cli.ask.line_editor import LineEditor  # noqa: PLC0415 - a pipe does without its library

    return LineEditor()
