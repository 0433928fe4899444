"""Learn how often tokens are right that followed a match, by its length, and bet on as many as pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.engine.scheduling.ngram_index import LONGEST_MATCH, SHORTEST_MATCH

_LEARNING = 0.12  # weight of a token that was right or wrong


class Bet(NamedTuple):
    """A number of tokens behind a match to verify, and the steps that are saved by it beyond its cost."""

    num_tokens: int
    gain: float


NO_BET = Bet(0, 0.0)


class MatchChances:
    """`starting`: of matches of 2, 3, … tokens, while nothing has been seen."""

    __slots__ = ("_chances",)

    def __init__(self, starting: Sequence[float]) -> None:
        self._chances = list(starting)

    def bet(self, match_tokens: int, most: int, price: float) -> Bet:
        """Return how many of `most` tokens are each right, with all before it, more often than it costs.

        `price`: of verifying a token, in steps of the sequence. A right one makes the match longer.
        """
        chance, count, gain = 1.0, 0, 0.0
        while count < most:
            chance *= self._chances[min(match_tokens + count, LONGEST_MATCH) - SHORTEST_MATCH]
            if chance < price:
                break
            count += 1
            gain += chance - price
        return Bet(count, gain)

    def learn(self, match_tokens: int, proposed: int, accepted: int) -> None:
        """Learn from a step that verified `proposed` tokens; those after the first wrong one say nothing."""
        for place in range(min(proposed, accepted + 1)):
            known = min(match_tokens + place, LONGEST_MATCH) - SHORTEST_MATCH
            self._chances[known] += _LEARNING * ((place < accepted) - self._chances[known])
