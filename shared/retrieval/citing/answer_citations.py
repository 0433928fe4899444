"""Find the passage that supports each sentence of an answer, and where in it; or that none does.

A sentence is compared with each sentence of the passages, and with two of them in a row: by the share of its
words that stands there, by the nearness of their vectors, and by how much of it is `stitched` from two
places. What these weigh is learned (`bench_citations --fit`), from answers whose support is known by how they
were made. A sentence with a number or a name that
the passage does not have, or of which one of the two alone is negated, is never supported: vectors and words
of "in 1974" and "in 1975" are nearly the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shared.messages import CitedSentence
from shared.retrieval.citing.evidence import FEWEST_WORDS, TextFacts, WordWeights, coverage
from shared.retrieval.citing.sentences import MARKS, TextSpan, sentence_spans
from shared.retrieval.citing.stitching import Stitching
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS

MAX_CITED_SENTENCES = 64
"""The sentences of an answer that are looked at: its first ones."""
MAX_PASSAGE_SENTENCES = 32
"""The sentences of a passage that are compared with them: its first ones."""
NEAREST_PARTS = 3
"""The parts of passages whose vectors are compared with that of a sentence: those with most of its words."""
MAX_EMBEDDED_TEXTS = 128
"""The texts that are embedded for one answer; sentences beyond are compared by words alone."""
CLEARLY_ALIKE = 0.95
"""A sentence with this share of its words, or more, needs no vector."""
CLEARLY_DIFFERENT = 0.25
"""A sentence with this share of its words, or less, is not supported, whatever its vector is near to."""

WEIGHTS = (-2.97, 2.26, 4.87, -10.81)
"""Weights of 1, coverage, cosine and the stitched share, learned by `python -m tests.bench.bench_citations
--fit` from answers made of every second article of XQuAD."""
SUPPORTED = 0.6
"""The least support with which a passage is cited: a wrong citation costs more than a missing one."""

EmbedTexts = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Vectors of length 1, one for each text."""


@dataclass(frozen=True, slots=True)
class PassagePart:
    passage: int
    span: TextSpan
    facts: TextFacts
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """A part beside a sentence: the share of the sentence's words that it has, and their cosine (that share
    once more, where nobody has embedded them). `stitched`: the share of the sentence that is there only
    where it is taken from two places. `may_support`: its facts are not against it."""

    part: PassagePart
    coverage: float
    cosine: float
    stitched: float
    may_support: bool

    @property
    def support(self) -> float:
        if not self.may_support:
            return 0.0
        known = (1.0, self.coverage, self.cosine, self.stitched)
        total = sum(weight * each for weight, each in zip(WEIGHTS, known, strict=True))
        return 1 / (1 + math.exp(-total))


def cite_answer(
    question: str, answer: str, passages: Sequence[str], embed: EmbedTexts, is_wanted: Callable[[], bool]
) -> list[CitedSentence]:
    """Return the support of each sentence, in their order, but for the one that says that the passages do not
    tell. `embed` is not called any more once the answer is not wanted as good as it can be: then words alone
    count."""
    spans = [
        span
        for span in sentence_spans(answer, MAX_CITED_SENTENCES)
        if span.of(answer).strip() != NOT_IN_DOCUMENTS
    ]
    matches = match_sentences(question, [span.of(answer) for span in spans], passages, embed, is_wanted)
    return [_support(span, found) for span, found in zip(spans, matches, strict=True)]


def _support(span: TextSpan, found: Sequence[Match]) -> CitedSentence:
    best = max(found, key=lambda match: match.support, default=None)
    if best is None or best.support < SUPPORTED:
        return CitedSentence(span.start, span.end, support=0.0 if best is None else best.support)
    part = best.part
    return CitedSentence(span.start, span.end, part.passage + 1, part.span.start, part.span.end, best.support)


def match_sentences(
    question: str,
    sentences: Sequence[str],
    passages: Sequence[str],
    embed: EmbedTexts,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[list[Match]]:
    """Return for each sentence the parts of passages that are nearest to it by words, best first."""
    singles = [part for place, text in enumerate(passages) for part in _parts(place, text)]
    parts = [*singles, *_pairs(singles, passages)]
    weights = WordWeights.of(part.facts for part in singles)
    of_passage = [TextFacts.of(text) for text in passages]
    stitching = Stitching([part.facts for part in singles], _neighbours(singles), weights)
    asked = TextFacts.of(question)
    nearest: list[tuple[str, TextFacts, list[tuple[float, PassagePart]]]] = []
    stitched = []
    for sentence in sentences:
        bare = MARKS.sub("", sentence)
        said = TextFacts.of(bare)
        is_short = len(said.words) < FEWEST_WORDS
        ranked = sorted(
            ((coverage(said, part.facts, weights), part) for part in parts),
            key=lambda each: (-each[0], -coverage(asked, each[1].facts, weights) if is_short else 0.0),
        )
        nearest.append((f"{question} {bare}" if is_short else bare, said, ranked[:NEAREST_PARTS]))
        stitched.append(stitching.stitched_share(bare, said))
    cosines = _cosines(nearest, embed, is_wanted)
    return [
        [
            _match(said, covered, part, of_passage[part.passage], cosines.get((text, part.text)), share)
            for covered, part in ranked
        ]
        for (text, said, ranked), share in zip(nearest, stitched, strict=True)
    ]


def _match(
    said: TextFacts,
    covered: float,
    part: PassagePart,
    passage: TextFacts,
    cosine: float | None,
    stitched: float,
) -> Match:
    facts_fit = (
        said.numbers <= passage.numbers
        and said.names <= passage.words
        and said.is_negated == part.facts.is_negated
    )
    known = covered if cosine is None else cosine
    return Match(part, covered, known, stitched, facts_fit and covered > CLEARLY_DIFFERENT)


def _cosines(
    nearest: Sequence[tuple[str, TextFacts, list[tuple[float, PassagePart]]]],
    embed: EmbedTexts,
    is_wanted: Callable[[], bool],
) -> dict[tuple[str, str], float]:
    """Return those of the pairs that words do not decide, as far as there is room for their texts."""
    texts: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    for text, _, ranked in nearest:
        if not ranked or ranked[0][0] >= CLEARLY_ALIKE:
            continue
        for covered, part in ranked:
            new = {text, part.text} - texts.keys()
            if covered > CLEARLY_DIFFERENT and len(texts) + len(new) <= MAX_EMBEDDED_TEXTS:
                texts.update({each: len(texts) + at for at, each in enumerate(sorted(new))})
                pairs.append((text, part.text))
    if not pairs or not is_wanted():
        return {}
    vectors = embed(list(texts))
    return {(one, other): float(vectors[texts[one]] @ vectors[texts[other]]) for one, other in pairs}


def _parts(place: int, text: str) -> list[PassagePart]:
    spans = sentence_spans(text, MAX_PASSAGE_SENTENCES)
    return [PassagePart(place, span, TextFacts.of(span.of(text)), span.of(text)) for span in spans]


def _neighbours(singles: Sequence[PassagePart]) -> list[int]:
    """Return the places of sentences that stand before another one of their passage."""
    return [at for at, (one, other) in enumerate(pairwise(singles)) if one.passage == other.passage]


def _pairs(singles: Sequence[PassagePart], passages: Sequence[str]) -> list[PassagePart]:
    """Return two sentences in a row as one part, unless one of them alone is negated."""
    pairs = []
    for one, other in pairwise(singles):
        if one.passage == other.passage and one.facts.is_negated == other.facts.is_negated:
            span = TextSpan(one.span.start, other.span.end)
            facts = one.facts.joined(other.facts)
            pairs.append(PassagePart(one.passage, span, facts, span.of(passages[one.passage])))
    return pairs
