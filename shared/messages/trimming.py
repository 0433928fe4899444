"""Budgets that shorten a prompt, which a gateway sends with it, and what a tokenizer left out for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

PASSAGES, SENTENCES, DUPLICATES, TURNS = "passages", "sentences", "duplicates", "turns"
SUMMARIZED, TOOLS, JSON, WHITESPACE = "summarized", "tools", "json", "whitespace"
TRIMMED_PARTS = (PASSAGES, SENTENCES, DUPLICATES, TURNS, SUMMARIZED, TOOLS, JSON, WHITESPACE)
"""The parts of a prompt that may be left out: passages as a whole, sentences of passages, sentences that
another passage says already, turns of a chat, turns in whose place a summary stands, tools; space between the
parts of JSON, and other space."""

Spans = tuple[int, ...]
"""Parts of a text, as where each begins and ends, in characters; () is all of it, and (0, 0) nothing."""


@dataclass(frozen=True, slots=True)
class Trimming:
    """Each budget is none at its default.

    `passage_tokens` bounds all passages together, as does `passage_share`, of what they have whole.
    `duplicates`: what another passage says already is left out. Sentences are chosen for `query`, or, where
    that is "", for the last turn. A chat has a prompt of at most `prompt_tokens`, by its oldest turns; with
    `fit_context` of no more than there is room for; in their place stands a summary of at most
    `summary_tokens`. `compact`: its turns are written without space that says nothing. Its tools
    have at most `tool_tokens`, the one of the name `tool`, which has to be called, among them.
    """

    passage_tokens: int = 0
    passage_share: float = 1.0
    duplicates: bool = False
    query: str = ""
    prompt_tokens: int = 0
    fit_context: bool = False
    compact: bool = False
    summary_tokens: int = 0
    tool_tokens: int = 0
    tool: str = ""

    @property
    def compresses(self) -> bool:
        """Whether passages may have to be shortened."""
        return bool(self.passage_tokens or self.passage_share < 1.0 or self.duplicates)

    @property
    def of_chat(self) -> Trimming:
        """Return the budgets that have to do with a chat and with no passage."""
        return replace(self, passage_tokens=0, passage_share=1.0, duplicates=False, query="")

    def chat_tokens(self, room_tokens: int) -> int:
        """Return how long the prompt of a chat may be where there is room for so many tokens, 0 for any
        length; where nobody knows the room, that is 0."""
        budgets = [self.prompt_tokens, room_tokens if self.fit_context else 0]
        return min(filter(None, budgets), default=0)


NO_TRIMMING = Trimming()


@dataclass(frozen=True, slots=True)
class TrimmedPart:
    """`what` is one of TRIMMED_PARTS, `count` how many were left out, `tokens` what they would have taken,
    each counted by itself."""

    what: str
    count: int
    tokens: int
