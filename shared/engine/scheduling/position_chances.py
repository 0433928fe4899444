"""Learn how often the tokens of a draft are right, by their position in it, and bet on as many as pay."""

from __future__ import annotations

from shared.engine.scheduling.match_chances import Bet

POSITIONS = 8
"""Positions that are told apart; what is behind is taken to be like the last of them."""
STARTING_CHANCES = (0.0,) + (0.6,) * (POSITIONS - 1)
"""The chance that a token is right, with all before it, while nothing has been seen of a drafter: the first
has to be tried before anybody bets on it."""


class PositionChances:
    """`learning`: the least weight of a token that was right or wrong; the first ones weigh more."""

    __slots__ = ("_chances", "_learning", "_seen")

    def __init__(self, learning: float) -> None:
        self._learning = learning
        self._chances = list(STARTING_CHANCES)
        self._seen = [1] * POSITIONS

    def copy(self, learning: float) -> PositionChances:
        """Return what is known here, to be learned on from by itself."""
        copied = PositionChances(learning)
        copied._chances = list(self._chances)
        copied._seen = list(self._seen)
        return copied

    def bet(self, most: int, price: float) -> Bet:
        """Return how many of `most` tokens are each right, with all before it, more often than it costs.

        `price`: of verifying a token, in steps of the sequence.
        """
        chance, count, gain = 1.0, 0, 0.0
        while count < most:
            chance *= self._chances[min(count, POSITIONS - 1)]
            if chance < price:
                break
            count += 1
            gain += chance - price
        return Bet(count, gain)

    def learn(self, proposed: int, accepted: int) -> None:
        """Learn from a step that verified `proposed` tokens; those after the first wrong one say nothing."""
        for position in range(min(proposed, accepted + 1)):
            known = min(position, POSITIONS - 1)
            self._seen[known] += 1
            weight = max(self._learning, 1 / self._seen[known])
            self._chances[known] += weight * ((position < accepted) - self._chances[known])
