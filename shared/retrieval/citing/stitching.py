"""Say how much of a sentence stands in its passages only where it is taken from two places.

Half of "The length of the Rhine is 251 metres" stands in what is told of a river, the other half in what is
told of a lake: all of its words are there, and nobody has said so. A sentence that says most of two
neighbouring ones has put these together, which is no stitching.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shared.retrieval.citing.evidence import (
    STEM_WORTH,
    TextFacts,
    WordWeights,
    coverage,
    stem_of,
    words_of,
)

MOSTLY = 0.5
"""A sentence that says this share of two in a row, or more, has put them together."""

Worths = npt.NDArray[np.float64]


class Stitching:
    """`singles` are the sentences of passages; `neighbours` the places of those that stand before another one
    of the same passage."""

    def __init__(self, singles: Sequence[TextFacts], neighbours: Sequence[int], weights: WordWeights) -> None:
        self._singles = singles
        self._neighbours = np.array(neighbours, np.int64)
        self._weights = weights
        self._worths: dict[str, Worths] = {}

    def stitched_share(self, sentence: str, said: TextFacts) -> float:
        """Return the share of what it says, by the weight of its words, by which its two halves stand in two
        places better than all of it stands in one. Of all places where it could be cut, the worst counts."""
        words = [word for word in dict.fromkeys(words_of(sentence)) if word in said.words]
        if len(words) < 2 or not self._singles:
            return 0.0
        found = np.array([self._worths_of(word) for word in words])  # [words, singles]
        before = np.cumsum(found, axis=0)
        whole = before[-1]
        halves = float((before[:-1].max(axis=1) + (whole - before[:-1]).max(axis=1)).max())
        together = max(float(whole.max()), self._put_together(found, said))
        return max(0.0, halves - together) / sum(map(self._weights.of_word, words))

    def _put_together(self, found: Worths, said: TextFacts) -> float:
        """Return the most that two sentences in a row have of it, of those that it says most of."""
        if not len(self._neighbours):
            return 0.0
        both = np.maximum(found[:, self._neighbours], found[:, self._neighbours + 1]).sum(axis=0)
        for each in np.argsort(-both):
            place = int(self._neighbours[each])
            pair = self._singles[place].joined(self._singles[place + 1])
            if both[each] <= found.sum(axis=0).max() or coverage(pair, said, self._weights) >= MOSTLY:
                return float(both[each])
        return 0.0

    def _worths_of(self, word: str) -> Worths:
        """Return what each of the sentences has of a word [singles]."""
        if word not in self._worths:
            weight, stem = self._weights.of_word(word), stem_of(word)
            self._worths[word] = np.array(
                [
                    weight if word in each.words else STEM_WORTH * weight if stem in each.stems else 0.0
                    for each in self._singles
                ]
            )
        return self._worths[word]
