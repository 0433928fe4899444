"""Passages as sentences, each with its place and with what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.retrieval.citing.evidence import TextFacts
from shared.retrieval.citing.sentences import TextSpan, sentence_spans

MAX_SENTENCES = 64
"""The sentences of a passage that are weighed one by one; what follows them is one with the last."""
MAX_SENTENCES_IN_ALL = 1024
"""The sentences of all passages together: where there are many passages, each has fewer."""


@dataclass(frozen=True, slots=True)
class PassageSentence:
    """A sentence of the passage at `passage`, which is `at` in it, from 0."""

    passage: int
    at: int
    span: TextSpan
    text: str
    facts: TextFacts


def passage_sentences(passages: Sequence[str]) -> list[PassageSentence]:
    """Return all of them, in the order of the passages; a passage without a letter or digit has none."""
    most = max(1, min(MAX_SENTENCES, MAX_SENTENCES_IN_ALL // max(1, len(passages))))
    return [
        PassageSentence(place, at, span, span.of(text), TextFacts.of(span.of(text)))
        for place, text in enumerate(passages)
        for at, span in enumerate(_spans(text, most))
    ]


def _spans(text: str, most: int) -> list[TextSpan]:
    spans = sentence_spans(text, most)
    if len(spans) == most:
        spans[-1] = TextSpan(spans[-1].start, len(text.rstrip()))
    return spans
