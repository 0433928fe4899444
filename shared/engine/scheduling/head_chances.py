"""Learn how often the tokens of a draft head are right, by the confidence that it states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shared.engine.scheduling.head_model import CONFIDENCE_BINS, bin_of

_BELIEF = 4  # what a head states weighs at first as much as so many of its tokens
_LEAST_WEIGHT = 0.02  # of a token that was right or wrong
_TRUST_LEARNING = 0.15
_LEAST_TRUST, _MOST_TRUST = 0.05, 1.3


class HeadBet(NamedTuple):
    """A number of guessed tokens to verify, and how many of them are expected to be right."""

    num_tokens: int
    right: float


class HeadChances:
    """The chances of all sequences, each of which is trusted more or less. At first a head is believed."""

    def __init__(self) -> None:
        self.by_bin = [(place + 0.5) / CONFIDENCE_BINS for place in range(CONFIDENCE_BINS)]
        self._seen = [_BELIEF] * CONFIDENCE_BINS

    def chance(self, confidence: float, trust: float) -> float:
        return min(1.0, trust * self.by_bin[bin_of(confidence)])

    def bet(self, confidences: Sequence[float], trust: float, price: float) -> HeadBet:
        """Return how many tokens are each right, with all before it, more often than it costs to verify."""
        chance, count, right = 1.0, 0, 0.0
        for confidence in confidences:
            chance *= self.chance(confidence, trust)
            if chance < price:
                break
            count += 1
            right += chance
        return HeadBet(count, right)

    def learn(self, confidences: Sequence[float], accepted: int, trust: float) -> float:
        """Learn from a step that verified tokens of these confidences; those after the first wrong one say
        nothing. Returns how far their sequence is trusted from now on."""
        for place, confidence in enumerate(confidences[: accepted + 1]):
            right, where = place < accepted, bin_of(confidence)
            surprise = right - self.chance(confidence, trust)
            trust = min(_MOST_TRUST, max(_LEAST_TRUST, trust * math.exp(_TRUST_LEARNING * surprise)))
            self._seen[where] += 1
            self.by_bin[where] += max(_LEAST_WEIGHT, 1 / self._seen[where]) * (right - self.by_bin[where])
        return trust
