"""Shorten passages to a budget of tokens: of their sentences those stay that fit the question best.

Sentences stay as they are and in their order, so that what is cited stands in the document word by word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.messages import DUPLICATES, PASSAGES, SENTENCES, Spans, TrimmedPart, Trimming
from shared.text.retrieval_prompt import passage_line
from shared.trimming.kept_text import NOTHING, WHOLE, joined_spans, kept_text
from shared.trimming.near_duplicates import said_before
from shared.trimming.passage_sentences import PassageSentence, passage_sentences
from shared.trimming.sentence_scores import sentence_scores

CountTokens = Callable[[str], int]
GIVEN_UP_PART = 16
"""The sentences of which one at a time is given up where they are too long together."""


@dataclass(frozen=True, slots=True)
class CompressedPassages:
    """The rest of each passage: its text, "" for nothing, and which parts of the passage that is.

    `parts` are what was left out.
    """

    texts: tuple[str, ...]
    spans: tuple[Spans, ...]
    parts: tuple[TrimmedPart, ...] = ()


def compress_passages(
    passages: Sequence[str], question: str, trimming: Trimming, count_tokens: CountTokens
) -> CompressedPassages:
    """Return what is left of passages, which come best first, within the budgets of `trimming`."""
    whole = CompressedPassages(tuple(passages), (WHOLE,) * len(passages))
    if not passages or not trimming.compresses:
        return whole
    costs = _Costs(count_tokens)
    sentences = passage_sentences(passages)
    said = said_before(sentences)
    fresh = [sentence for sentence, is_said in zip(sentences, said, strict=True) if not is_said]
    budget = trimming_budget(trimming, costs.of_lines(passages))
    kept, left = fresh, _left(passages, sentences, fresh)
    if costs.of_lines(left.texts) > budget:
        kept = _best(fresh, sentence_scores(question, fresh), costs, budget)
        left = _left(passages, sentences, kept)
    while kept and costs.of_lines(left.texts) > budget:  # pieces that cost more beside each other than alone
        kept = kept[: len(kept) - max(1, len(kept) // GIVEN_UP_PART)]
        left = _left(passages, sentences, kept)
    parts = _parts(sentences, said, kept, left.texts, costs)
    return CompressedPassages(left.texts, left.spans, parts) if parts else whole


def trimming_budget(trimming: Trimming, tokens: int) -> int:
    """Return how many of the tokens that passages have whole they may have."""
    budget = math.ceil(trimming.passage_share * tokens)
    return min(budget, trimming.passage_tokens) if trimming.passage_tokens else budget


@dataclass(slots=True)
class _Costs:
    """The tokens of texts, each of which is counted once."""

    count_tokens: CountTokens
    counted: dict[str, int] = field(default_factory=dict)

    def of(self, text: str) -> int:
        if text not in self.counted:
            self.counted[text] = self.count_tokens(text)
        return self.counted[text]

    def of_sentence(self, sentence: PassageSentence) -> int:
        return self.of(f" {sentence.text}")

    @property
    def of_number(self) -> int:
        """Count what the line of a passage has beside its text."""
        return self.of(f"{passage_line(1, '')}\n")

    def of_lines(self, texts: Sequence[str]) -> int:
        """Count all of them as they stand in a prompt."""
        lines = (passage_line(number, text) for number, text in enumerate(filter(None, texts), start=1))
        return sum(self.of(f"{line}\n") for line in lines)


def _best(
    sentences: Sequence[PassageSentence], scores: Sequence[float], costs: _Costs, budget: int
) -> list[PassageSentence]:
    """Return sentences that fit into the budget, the best ones first; one that is too long for what is left
    is passed over."""
    ranked = sorted(zip(scores, sentences, strict=True), key=lambda each: -each[0])
    best: list[PassageSentence] = []
    begun: set[int] = set()
    for _, sentence in ranked:
        cost = costs.of_sentence(sentence)
        if sentence.passage not in begun:
            cost += costs.of_number
        if cost <= budget:
            budget -= cost
            begun.add(sentence.passage)
            best.append(sentence)
    return best


def _left(
    passages: Sequence[str], sentences: Sequence[PassageSentence], kept: Sequence[PassageSentence]
) -> CompressedPassages:
    """Return the passages with their kept sentences alone; one that has all of them stays as it is."""
    texts, spans = [], []
    for place, text in enumerate(passages):
        stay = sorted((each.span.start, each.span.end) for each in kept if each.passage == place)
        count = sum(each.passage == place for each in sentences)
        of = WHOLE if len(stay) == count else joined_spans(text, stay) if stay else NOTHING
        spans.append(of)
        texts.append(kept_text(text, of))
    return CompressedPassages(tuple(texts), tuple(spans))


def _parts(
    sentences: Sequence[PassageSentence],
    said: Sequence[bool],
    kept: Sequence[PassageSentence],
    texts: Sequence[str],
    costs: _Costs,
) -> tuple[TrimmedPart, ...]:
    """Return what was left out: each sentence once, as one that was said before, with its passage, or
    alone."""
    stay = {(each.passage, each.at) for each in kept}
    out: dict[str, list[PassageSentence]] = {DUPLICATES: [], PASSAGES: [], SENTENCES: []}
    for sentence, is_said in zip(sentences, said, strict=True):
        if (sentence.passage, sentence.at) not in stay:
            kind = DUPLICATES if is_said else SENTENCES if texts[sentence.passage] else PASSAGES
            out[kind].append(sentence)
    gone = len({each.passage for each in out[PASSAGES]})
    counts = {kind: gone if kind == PASSAGES else len(of) for kind, of in out.items()}
    return tuple(
        TrimmedPart(kind, counts[kind], sum(map(costs.of_sentence, of))) for kind, of in out.items() if of
    )
