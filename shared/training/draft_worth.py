"""Judge whether a draft pays: tokens per step of the target against what the steps cost."""

from __future__ import annotations

from dataclasses import dataclass

from shared.training.acceptance import DraftAcceptance
from shared.training.step_times import StepTimes

WORTH_HAVING = 1.05
"""Less of a gain is noise of the next measurement."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The best number of drafts, 0 for none, and how many times as fast decoding then is."""

    length: int
    speedup: float

    @property
    def pays(self) -> bool:
        return self.speedup >= WORTH_HAVING


def worth_of(accepted: DraftAcceptance, times: StepTimes, draft_us: float) -> Worth:
    """Return the best length and speed-up for one stream, where every draft token costs `draft_us` before the
    target's step begins. A step that nothing is drafted for is one of the target alone."""
    best = Worth(0, 1.0)
    for length, verify_us in times.verify_us.items():
        drafted_us = verify_us + length * draft_us
        step_us = accepted.offered * drafted_us + (1 - accepted.offered) * times.target_us
        speedup = accepted.tokens_per_step(length) * times.target_us / step_us if step_us else 0.0
        best = max(best, Worth(length, speedup), key=lambda worth: worth.speedup)
    return best
