"""Find the sentences that say, in nearly the same words, what another one has said already.

A sentence has been said where nearly all of its words stand in another one in the same order. One with a
number, a name or a negation of its own says something else, however alike the rest is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from shared.retrieval.citing.evidence import FEWEST_WORDS, words_of
from shared.trimming.passage_sentences import PassageSentence

SAID_SHARE = 0.9
"""A sentence with this share of its words in an earlier one, or more, in their order, has been said."""
LIKELY_SHARE = 0.6
"""Sentences are compared word by word where one has this share of its pairs of words in the other."""
MAX_COMPARED_WORDS = 64
"""A longer sentence has been said only where it is the same word by word."""
MAX_REMEMBERED = 16
"""The sentences, the first ones, by which a pair of words is remembered."""
MAX_COMPARED_SENTENCES = 4
"""The earlier sentences, those with the most pairs of words in common, with which one is compared."""

Words = tuple[str, ...]
Pair = tuple[str, str]


def said_before(sentences: Sequence[PassageSentence]) -> list[bool]:
    """Return for each sentence whether an earlier one says as much."""
    said: list[bool] = []
    words = [tuple(words_of(sentence.text)) for sentence in sentences]
    owners: dict[Pair, list[int]] = defaultdict(list)
    for place, sentence in enumerate(sentences):
        pairs = _pairs(words[place])
        shared = Counter(owner for pair in pairs for owner in owners.get(pair, ()))
        alike = [
            owner
            for owner, count in shared.most_common(MAX_COMPARED_SENTENCES)
            if count >= LIKELY_SHARE * len(pairs)
        ]
        is_said = any(_says_all(sentences[one], words[one], sentence, words[place]) for one in alike)
        said.append(is_said)
        if not is_said:
            for pair in pairs:
                if len(owners[pair]) < MAX_REMEMBERED:
                    owners[pair].append(place)
    return said


def _says_all(earlier: PassageSentence, said: Words, later: PassageSentence, again: Words) -> bool:
    """Return whether one sentence of the words `said` says as much as a later one of the words `again`."""
    one, other = earlier.facts, later.facts
    if len(other.words) < FEWEST_WORDS or max(len(said), len(again)) > MAX_COMPARED_WORDS:
        return said == again
    says_more = other.numbers - one.numbers or other.names - one.words or one.is_negated != other.is_negated
    return not says_more and _in_order(said, again) >= SAID_SHARE * len(again)


def _in_order(said: Sequence[str], again: Sequence[str]) -> int:
    """Return the length of the longest run of words, with gaps, that both have."""
    longest = [0] * (len(again) + 1)
    for word in said:
        before = 0
        for at, other in enumerate(again, start=1):
            best = before + 1 if word == other else max(longest[at], longest[at - 1])
            before, longest[at] = longest[at], best
    return longest[-1]


def _pairs(words: Words) -> set[Pair]:
    """Return the words of a text by two; of a single word, that alone."""
    return set(pairwise(words)) or {(word, "") for word in words}
