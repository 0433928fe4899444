"""The load that is to be served: how often, how regularly, how long, and how much of prompts is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Self

import numpy as np

from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.stats.quantiles import Floats

DRAWN_LENGTHS = 4096
"""The lengths that stand for a distribution."""
LENGTHS_SEED = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`rate` requests a second of one region, whose gaps have the squared coefficient of variation
    `arrival_scv`. Lengths are pairs, prompts rising. `cached_share` of each prompt is found, not computed."""

    rate: float
    arrival_scv: float
    input_tokens: Floats
    output_tokens: Floats
    cached_share: float = 0.0

    @classmethod
    def of_pairs(
        cls, rate: float, arrival_scv: float, pairs: Sequence[tuple[int, int]], cached_share: float
    ) -> Self:
        """`pairs` are tokens of prompts and of answers, one at least."""
        ordered = np.array(sorted(pairs), dtype=np.float64)
        return cls(rate, arrival_scv, ordered[:, 0], np.maximum(1.0, ordered[:, 1]), cached_share)

    @classmethod
    def of_lengths(
        cls,
        rate: float,
        variation: float,
        input_tokens: TokenLengths,
        output_tokens: TokenLengths,
        cached_share: float = 0.0,
    ) -> Self:
        """Draw lengths as a benchmark does, the same again each time."""
        random = Random(LENGTHS_SEED)  # noqa: S311 - it has to be repeatable, not secret
        pairs = [(input_tokens.draw(random), output_tokens.draw(random)) for _ in range(DRAWN_LENGTHS)]
        return cls.of_pairs(rate, variation**2, pairs, cached_share)

    def at_rate(self, rate: float) -> Workload:
        return replace(self, rate=rate)

    def more_cached(self, share: float) -> Workload:
        """Return the same load with so much of what is computed of prompts found as well."""
        return replace(self, cached_share=1.0 - (1.0 - self.cached_share) * (1.0 - share))

    @property
    def computed_tokens(self) -> Floats:
        """The tokens of prompts that prefill computes; of a prompt that is found whole still the last one."""
        return np.maximum(1.0, self.input_tokens * (1.0 - self.cached_share))

    @property
    def tokens_behind_first(self) -> Floats:
        return self.output_tokens - 1.0

    @property
    def mean_sequence_tokens(self) -> float:
        return float(self.input_tokens.mean() + self.output_tokens.mean())

    @property
    def mean_output_tokens(self) -> float:
        return float(self.output_tokens.mean())


def squared_variation(values: Floats) -> float:
    """Return the variance over the mean's square; 0 where all are 0."""
    mean = float(values.mean())
    return float(values.var()) / mean**2 if mean else 0.0
