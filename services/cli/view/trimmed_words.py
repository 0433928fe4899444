"""Say in words what was left out of a prompt for its budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

_WORDS = {
    "passages": ("passage", "passages"),
    "sentences": ("sentence of passages", "sentences of passages"),
    "json": ("JSON text's space", "JSON texts' space"),
    "whitespace": ("turn's space", "turns' space"),
    "summarized": ("turn of the chat but for a summary", "turns of the chat but for a summary"),
    "tools": ("tool of the chat", "tools of the chat"),
    "turns": ("turn of the chat", "turns of the chat"),
    "duplicates": ("sentence that another passage says", "sentences that other passages say"),
}


class LeftOut(Protocol):
    """A part of a prompt, of the contract or of a message."""

    @property
    def what(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def trimmed_words(parts: Iterable[LeftOut]) -> str:
    """Return one line; a kind of part of a newer gateway stays in its own word."""
    parts = list(parts)
    told = [f"{part.count} {_WORDS.get(part.what, (part.what,) * 2)[part.count != 1]}" for part in parts]
    return f"{', '.join(told)} ({sum(part.tokens for part in parts)} tokens)"
