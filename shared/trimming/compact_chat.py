"""Write a chat in fewer tokens, without a word less: JSON of tools, and space that says nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shared.messages import JSON, WHITESPACE, ChatTurn, TrimmedPart
from shared.trimming.compact_text import compact_json, compact_space

DATA_ROLES = ("tool", "function")
"""The turns whose JSON is data: what people write may be about how it is written."""
OWN_ROLES = ("assistant",)
"""The turns that stay letter by letter: the model wrote them, and their KV may be there."""


@dataclass(frozen=True, slots=True)
class CompactChat:
    """The turns as they are sent, and what was left out of them."""

    turns: tuple[ChatTurn, ...]
    parts: tuple[TrimmedPart, ...] = ()


def compact_chat(turns: Sequence[ChatTurn], count_tokens: Callable[[str], int]) -> CompactChat:
    """Return the chat with each turn shorter that is then fewer tokens."""
    written: list[ChatTurn] = []
    saved: dict[str, list[int]] = {JSON: [], WHITESPACE: []}
    for turn in turns:
        kind, text = _compact(turn)
        tokens = count_tokens(turn.content) - count_tokens(text) if text != turn.content else 0
        if tokens > 0:
            saved[kind].append(tokens)
        written.append(replace(turn, content=text) if tokens > 0 else turn)
    return CompactChat(
        tuple(written), tuple(TrimmedPart(kind, len(of), sum(of)) for kind, of in saved.items() if of)
    )


def _compact(turn: ChatTurn) -> tuple[str, str]:
    """Return what is left out, and the text without it."""
    if turn.role in OWN_ROLES:
        return WHITESPACE, turn.content
    text = compact_json(turn.content) if turn.role in DATA_ROLES else turn.content
    if text != turn.content:
        return JSON, text
    return WHITESPACE, compact_space(turn.content)
