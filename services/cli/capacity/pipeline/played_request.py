"""A request that is played: what it asks for, and when it got how far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.pipeline.step_log import StepLog

NO_STEPS = StepLog()


@dataclass(slots=True, eq=False)
class PlayedRequest:
    """`computed_tokens` of the prompt are not found in caches. Waits are those in lines alone: before its
    gateway, for a slot of a decode worker, before its prefill worker."""

    at_s: float
    prompt_tokens: float
    computed_tokens: float
    output_tokens: int
    left_tokens: float = field(init=False)
    """The tokens of the prompt that are still to compute."""
    front_wait_s: float = 0.0
    slot_wait_s: float = 0.0
    line_wait_s: float = 0.0
    since_s: float = 0.0
    """The time at which it began to wait in the line where it is."""
    begun: bool = False
    first_s: float = 0.0
    """The time at which its prompt is computed, and its first token drawn."""
    end_s: float = 0.0
    """The time at which its last token is drawn."""
    way_s: float = 0.0
    """The way of each token to its client."""
    steps: StepLog = NO_STEPS
    joined: int = 0
    """The steps of its decode worker that ended before it joined the batch."""

    def __post_init__(self) -> None:
        self.left_tokens = self.computed_tokens

    @property
    def tokens_behind_first(self) -> int:
        return self.output_tokens - 1

    @property
    def ttft_s(self) -> float:
        return self.first_s + self.way_s - self.at_s

    @property
    def e2e_s(self) -> float:
        return self.end_s + self.way_s - self.at_s

    @property
    def tpot_s(self) -> float:
        """The mean time of a token behind the first; nan where there is none."""
        behind = self.tokens_behind_first
        return (self.end_s - self.first_s) / behind if behind else float("nan")

    def gaps_s(self) -> Floats:
        """Return the times between its tokens, one for each behind the first."""
        ends_s = self.steps.ends_s()[self.joined : self.joined + self.tokens_behind_first]
        return np.diff(ends_s, prepend=self.first_s) if len(ends_s) else ends_s
