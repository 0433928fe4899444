"""A number of tokens: one, a range, or a median with the spread of its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Self

from services.cli.bench.plan.prompt_writer import MAX_PROMPT_TOKENS

MAX_SPREAD = 3.0
"""The greatest standard deviation of the logarithm of lengths."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """`spread` 0 is uniform from `least` to `most`; else a log-normal around the median, cut at both."""

    least: int
    most: int
    median: float = 0.0
    spread: float = 0.0

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "256", "128-512", or "256~0.6". Raises ValueError, which says what is possible."""
        wrong = ValueError(f"{text!r} is no length: write 256, 128-512, or MEDIAN~SPREAD as 256~0.6")
        first, tilde, second = text.partition("~")
        if tilde:
            try:
                median, spread = int(first), float(second)
            except ValueError:
                raise wrong from None
            if not (1 <= median <= MAX_PROMPT_TOKENS and 0 < spread <= MAX_SPREAD):
                raise wrong
            return cls(1, MAX_PROMPT_TOKENS, float(median), spread)
        first, dash, second = text.partition("-")
        if not (
            first.isascii() and first.isdigit() and (not dash or (second.isascii() and second.isdigit()))
        ):
            raise wrong
        least, most = int(first), int(second or first)
        if not 1 <= least <= most <= MAX_PROMPT_TOKENS:
            raise wrong
        return cls(least, most)

    def draw(self, random: Random) -> int:
        if self.spread:
            drawn = math.exp(random.gauss(math.log(self.median), self.spread))
            return min(self.most, max(self.least, round(drawn)))
        return random.randint(self.least, self.most)
