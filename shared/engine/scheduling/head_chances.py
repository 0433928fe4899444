"""Learn how often the tokens of a draft head are right, by the confidence that it states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.engine.scheduling.head_model import CONFIDENCE_BINS, bin_of

_BELIEF = 4  # what a head states weighs at first as much as so many of its tokens
_LEAST_WEIGHT = 0.02  # of a token that was right or wrong
_LEAST_TRUST, _MOST_TRUST = 0.02, 1.3
_MEMORY = 0.95  # of a sequence: what is twenty tokens back counts a third
_COMMON_MEMORY = 0.98  # of all sequences
_FIRST_WEIGHT = 0.5  # the trust in a head of which nothing was seen weighs so many expected tokens
_INHERITED_WEIGHT = 1.0  # and that with which a new sequence begins so many


class HeadBet(NamedTuple):
    """A number of guessed tokens to verify, and how many of them are expected to be right."""

    num_tokens: int
    right: float


class HeadTrust:
    """Remember how far chances came true lately: tokens that were right, by those that should have been."""

    __slots__ = ("_expected", "_memory", "_right")

    def __init__(self, value: float, weight: float, memory: float) -> None:
        self._right = value * weight
        self._expected = weight
        self._memory = memory

    @property
    def value(self) -> float:
        """Return times what the chances are for whom this is."""
        return min(_MOST_TRUST, max(_LEAST_TRUST, self._right / self._expected))

    def learn(self, chance: float, *, right: bool) -> None:
        """Take in a token that was right, or not, where it should have been so often."""
        self._right = self._memory * self._right + right
        self._expected = self._memory * self._expected + chance


class HeadChances:
    """The chances of all sequences, each of which is trusted more or less. At first they are the squares of
    what a head states: on text that it has not learned from it is too sure of itself."""

    def __init__(self) -> None:
        self.by_bin = [((place + 0.5) / CONFIDENCE_BINS) ** 2 for place in range(CONFIDENCE_BINS)]
        self._seen = [_BELIEF] * CONFIDENCE_BINS
        self._common = HeadTrust(1.0, _FIRST_WEIGHT, _COMMON_MEMORY)

    def new_trust(self) -> HeadTrust:
        """Return that of a sequence that comes, which is what the last ones have shown."""
        return HeadTrust(self._common.value, _INHERITED_WEIGHT, _MEMORY)

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

    def learn(self, confidences: Sequence[float], accepted: int, trust: HeadTrust) -> None:
        """Learn from a step that verified tokens of these confidences, of a sequence that is trusted so;
        those after the first wrong one say nothing."""
        for place, confidence in enumerate(confidences[: accepted + 1]):
            right, where = place < accepted, bin_of(confidence)
            for each in (trust, self._common):
                each.learn(self.by_bin[where], right=right)
            self._seen[where] += 1
            self.by_bin[where] += max(_LEAST_WEIGHT, 1 / self._seen[where]) * (right - self.by_bin[where])
