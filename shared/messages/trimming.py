"""Budgets that shorten a prompt, which a gateway sends with it, and what a tokenizer left out for them."""

from __future__ import annotations

from dataclasses import dataclass

PASSAGES, SENTENCES, DUPLICATES = "passages", "sentences", "duplicates"
TRIMMED_PARTS = (PASSAGES, SENTENCES, DUPLICATES)
"""The parts of a prompt that may be left out: passages as a whole, sentences of passages, and sentences that
another passage says already."""

Spans = tuple[int, ...]
"""Parts of a text, as where each begins and ends, in characters; () is all of it, and (0, 0) nothing."""


@dataclass(frozen=True, slots=True)
class Trimming:
    """Each budget is none at its default.

    `passage_tokens` bounds all passages together, as does `passage_share`, of what they have whole.
    `duplicates`: what another passage says already is left out. Sentences are chosen for `query`, or, where
    that is "", for the last turn.
    """

    passage_tokens: int = 0
    passage_share: float = 1.0
    duplicates: bool = False
    query: str = ""

    @property
    def compresses(self) -> bool:
        """Whether passages may have to be shortened."""
        return bool(self.passage_tokens or self.passage_share < 1.0 or self.duplicates)


NO_TRIMMING = Trimming()


@dataclass(frozen=True, slots=True)
class TrimmedPart:
    """`what` is one of TRIMMED_PARTS, `count` how many were left out, `tokens` what they would have taken,
    each counted by itself."""

    what: str
    count: int
    tokens: int
