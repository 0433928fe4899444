"""The time that a simulated engine takes for a step, by what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from shared.engine.cost_model import NOTHING, Features, span_features


@dataclass(frozen=True, slots=True)
class StepProfile:
    """step_us = step + token * tokens + sequence * sequences + key * keys: what an engine's own cost model
    learns. The default is about a 135M model on one core."""

    step_us: float = 2000.0
    token_us: float = 300.0
    sequence_us: float = 500.0
    key_us: float = 0.2

    @classmethod
    def measured(cls, prompt_tokens_per_s: float, alone_ms: float, many: int, many_ms: float) -> Self:
        """Of what a benchmark says: the speed of prompts, a step of one sequence and one of `many`."""
        token_us = 1e6 / prompt_tokens_per_s
        row_us = max(token_us, 1000 * (many_ms - alone_ms) / (many - 1))
        return cls(1000 * alone_ms - row_us, token_us, row_us - token_us, 0.0)

    def times_as_slow(self, times: float) -> StepProfile:
        """Return the profile of a machine on which each step takes so many times as long."""
        return StepProfile(
            times * self.step_us, times * self.token_us, times * self.sequence_us, times * self.key_us
        )

    def us(self, spans: list[tuple[int, int]]) -> float:
        """`spans`: the first position and the number of rows of each sequence in the step."""
        work: Features = NOTHING
        for start, num_rows in spans:
            work = work.plus(span_features(start, num_rows))
        tokens, sequences, keys = work
        return self.step_us + self.token_us * tokens + self.sequence_us * sequences + self.key_us * keys


USUAL = StepProfile()
