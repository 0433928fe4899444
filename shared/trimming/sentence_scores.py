"""Estimate how likely it is that a sentence of a passage answers a question, by words alone.

What counts is the share of the question's words that it has, by their rarity among these sentences; a little
also that of its passage and of the sentences next to it, how early its passage was found, and whether it has
a number or a name where one is asked for. Learned weights, and the nearness of vectors, were measured to keep
no more answers than these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shared.retrieval.citing.evidence import TextFacts, WordWeights, coverage
from shared.trimming.passage_sentences import PassageSentence

PASSAGE_WEIGHT = 0.3
NEXT_WEIGHT = 0.25
RANK_WEIGHT = 0.1
ASKED_WEIGHT = 0.15

_ASKS_NUMBER = re.compile(
    r"\b(?:when|how (?:many|much|long|old|far|often|large|big|high|fast)"
    r"|(?:what|which) (?:year|date|day|century|percent|percentage|number|size|limit))\b",
    re.IGNORECASE,
)
_ASKS_NAME = re.compile(r"\b(?:who|whom|whose|where)\b", re.IGNORECASE)


def sentence_scores(question: str, sentences: Sequence[PassageSentence]) -> list[float]:
    """Return a score for each sentence; higher is likelier. Passages come best first."""
    asked = TextFacts.of(question)
    weights = WordWeights.of(sentence.facts for sentence in sentences)
    own = [coverage(asked, sentence.facts, weights) for sentence in sentences]
    passages = _passage_facts(sentences)
    whole = {place: coverage(asked, facts, weights) for place, facts in passages.items()}
    return [
        score
        + NEXT_WEIGHT * _beside(sentences, own, place)
        + PASSAGE_WEIGHT * whole[sentence.passage]
        + RANK_WEIGHT / (1 + sentence.passage)
        + ASKED_WEIGHT * _has_what_is_asked(question, asked, sentence.facts)
        for place, (sentence, score) in enumerate(zip(sentences, own, strict=True))
    ]


def _passage_facts(sentences: Sequence[PassageSentence]) -> dict[int, TextFacts]:
    parts: dict[int, list[TextFacts]] = {}
    for sentence in sentences:
        parts.setdefault(sentence.passage, []).append(sentence.facts)
    return {place: _joined(of) for place, of in parts.items()}


def _joined(parts: Sequence[TextFacts]) -> TextFacts:
    """Return what all of them say together."""
    return TextFacts(
        frozenset().union(*(part.words for part in parts)),
        frozenset().union(*(part.stems for part in parts)),
        frozenset().union(*(part.numbers for part in parts)),
        frozenset().union(*(part.names for part in parts)),
        any(part.is_negated for part in parts),
    )


def _beside(sentences: Sequence[PassageSentence], own: Sequence[float], place: int) -> float:
    """Return the score of the better one of the sentences before and after it in its passage."""
    beside = [
        own[at]
        for at in (place - 1, place + 1)
        if 0 <= at < len(own) and sentences[at].passage == sentences[place].passage
    ]
    return max(beside, default=0.0)


def _has_what_is_asked(question: str, asked: TextFacts, said: TextFacts) -> float:
    if _ASKS_NUMBER.search(question):
        return float(bool(said.numbers - asked.numbers))
    if _ASKS_NAME.search(question):
        return float(bool(said.names - asked.names))
    return 0.0
