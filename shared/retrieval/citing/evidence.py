"""Compare a sentence of an answer and a part of a passage: words, numbers, names, negations."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared.retrieval.index.words import MAX_WORD_CHARS, runs_of, terms_of_run

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"\b[^\W\d_][\w'\u2019]*")
STEM_CHARS = 5
"""Longer words that begin alike count as one, a little less: "conquered" and "conquest"."""
STEM_WORTH = 0.8
FEWEST_WORDS = 3
"""A shorter sentence says too little by itself: its question counts with it."""


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


PLAIN = _listed(
    """a an the this that these those it its he she they his her their we our i me my you your who whom whose
    what which when where why how is are was were be been being am do does did done has have had can could
    should would will shall may might must of in on at to for from by with as into about than then there and
    or if so but also such other some any each both all very just only while during between through s t
    according text passage passages document documents says said states stated mentioned answer based"""
)
"""English words that say nothing by themselves."""
NEGATIONS = _listed("no not never none nothing nobody neither nor without cannot")
_NOT = re.compile(r"n['\u2019]t\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TextFacts:
    """`words` are those that say something; `names` are among them, known by capitals inside a sentence."""

    words: frozenset[str]
    stems: frozenset[str]
    numbers: frozenset[str]
    names: frozenset[str]
    is_negated: bool

    @classmethod
    def of(cls, text: str) -> TextFacts:
        text = _NOT.sub(" not", text)
        words = list(words_of(text))
        said = frozenset(words) - PLAIN - NEGATIONS
        return cls(
            words=said,
            stems=frozenset(map(stem_of, said)),
            numbers=frozenset(map(_number, NUMBER.findall(text))),
            names=frozenset(_names(text)) & said,
            is_negated=not NEGATIONS.isdisjoint(words),
        )

    def joined(self, other: TextFacts) -> TextFacts:
        return TextFacts(
            self.words | other.words,
            self.stems | other.stems,
            self.numbers | other.numbers,
            self.names | other.names,
            self.is_negated or other.is_negated,
        )


@dataclass(frozen=True, slots=True)
class WordWeights:
    """The weight of a word: the rarer among the parts of the passages, the more it says."""

    weights: Mapping[str, float]
    unknown: float

    @classmethod
    def of(cls, parts: Iterable[TextFacts]) -> WordWeights:
        counts: Counter[str] = Counter()
        total = 0
        for part in parts:
            counts.update(part.words)
            total += 1
        weights = {word: math.log1p(total / count) for word, count in counts.items()}
        return cls(weights, math.log1p(2 * total))

    def of_word(self, word: str) -> float:
        return self.weights.get(word, self.unknown)


def coverage(said: TextFacts, part: TextFacts, weights: WordWeights) -> float:
    """Return the share of what a sentence says, by the weight of its words, that stands in a part; 0 for a
    sentence that says nothing."""
    total = found = 0.0
    for word in said.words:
        weight = weights.of_word(word)
        total += weight
        if word in part.words:
            found += weight
        elif stem_of(word) in part.stems:
            found += STEM_WORTH * weight
    return found / total if total else 0.0


def words_of(text: str) -> Iterable[str]:
    """Return words; of scripts that separate none, characters and pairs of them."""
    for run in runs_of(text):
        terms = terms_of_run(run)
        yield from terms[:1] if terms[0] == run[:MAX_WORD_CHARS] else terms


def _names(text: str) -> Iterable[str]:
    """Return the words with a capital that do not begin the text."""
    for place, match in enumerate(_WORD.finditer(text)):
        if place and match[0][0].isupper():
            yield from words_of(match[0])


def _number(text: str) -> str:
    return text.replace(",", "").rstrip(".")


def stem_of(word: str) -> str:
    """Return what words that begin alike have in common."""
    return word[:STEM_CHARS]
