"""Choose how many branches are prepared and how long they are, in the time that there is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

LIKELY_RIGHT = 0.7
"""The chance by which longer branches are weighed against more of them: of a guess behind right ones."""


class BranchShape(NamedTuple):
    """Say how many outcomes of rounds are prepared for, with how many tokens behind each."""

    branches: int
    tokens: int


def best_shape(
    chances: Sequence[float], most_tokens: int, left_us: float, fixed_us: float, branch_us: float
) -> BranchShape:
    """Return the shape that is expected to bring the most right guesses within `left_us`.

    `chances` are those of outcomes, the likeliest first. A step takes `fixed_us` and `branch_us` for each
    branch, and there is one step more than a branch has tokens: the first finds what follows when all guesses
    of a round are right. Where there is no time for anything it is one branch of one token.
    """
    reached = list(accumulate(chances, initial=0.0))
    best, most_right = BranchShape(min(1, len(chances)), 1), 0.0
    right = 0.0
    for tokens in range(1, most_tokens + 1):
        right += LIKELY_RIGHT**tokens
        branches = _branches_within(left_us / (tokens + 1) - fixed_us, branch_us, len(chances))
        if branches and reached[branches] * right >= most_right:
            best, most_right = BranchShape(branches, tokens), reached[branches] * right
    return best


def _branches_within(left_us: float, branch_us: float, most: int) -> int:
    if left_us < branch_us:
        return 0
    return min(most, int(left_us / branch_us)) if branch_us > 0 else most
