"""The gateway asks a retriever which passages support what an answer says."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CITED_ANSWER_CHARS = 16_384
"""The characters of an answer that are looked at: its beginning."""
MAX_CITED_PASSAGES = 16
MAX_CITED_PASSAGE_BYTES = 1 << 17
"""The passages of one `CiteAnswer`, together."""


@dataclass(frozen=True, slots=True)
class CiteAnswer:
    """`passages` in the order in which they stand in the prompt."""

    question: str
    answer: str
    passages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CitedSentence:
    """The characters `start` to `end` of the answer are a sentence. `place` is that of the passage in the
    prompt, from 1, that supports it in its characters `passage_start` to `passage_end`; 0: none does.
    `support` is from 0 to 1."""

    start: int
    end: int
    place: int = 0
    passage_start: int = 0
    passage_end: int = 0
    support: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerCited:
    """Every sentence that was looked at, in the order of the answer."""

    sentences: tuple[CitedSentence, ...]
