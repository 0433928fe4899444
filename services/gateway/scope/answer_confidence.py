"""Measure how sure a model was of its answer, by the log-probabilities of the tokens that it drew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.sampling.parameters import TokenLogprob


@dataclass(slots=True)
class AnswerConfidence:
    """`hidden`: the client has not asked for log-probabilities, and gets none."""

    hidden: bool
    total: float = 0.0
    tokens: int = 0

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Add those of a row."""
        for each in logprobs:
            self.total += each.logprob
            self.tokens += 1

    def is_below(self, mean: float) -> bool:
        """Whether the mean of all tokens is less; an answer without any is not."""
        return self.tokens > 0 and self.total / self.tokens < mean
