"""How long steps take on this machine: one token of the target, a target's step that verifies drafts, one
of the draft."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine import LLM, SamplingParams
from shared.training.acceptance import LONGEST_DRAFT

TIMED_STEPS = 24
DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians, in microseconds, of a batch of one."""

    target_us: float
    verify_us: dict[int, float]  # by number of drafts
    draft_us: float


def measure_steps(target: LLM, draft: LLM, prompt: Sequence[int]) -> StepTimes:
    """Behind `prompt`, whose greedy continuation is drafted, so that the engine takes every draft."""
    num_tokens = (TIMED_STEPS + 2) * (LONGEST_DRAFT + 1)
    greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    said = target.generate([prompt], greedy)[0].token_ids
    return StepTimes(
        _step_us(target, prompt, greedy, said, 0),
        {length: _step_us(target, prompt, greedy, said, length) for length in DRAFT_LENGTHS},
        _step_us(draft, prompt, greedy, (), 0),
    )


def _step_us(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, said: Sequence[int], drafts: int
) -> float:
    """Median of TIMED_STEPS steps after the first two."""
    engine, key = llm.engine, "timed"
    engine.admit(key, prompt, len(prompt), params)
    times: list[int] = []
    generated = 0
    try:
        while engine.has_work and len(times) < TIMED_STEPS + 2:
            if generated and drafts:
                engine.propose(key, len(prompt) + generated, said[generated : generated + drafts])
            result = engine.step()
            proposed = sum(output.proposed_drafts for output in result.outputs)
            if generated and proposed == drafts:
                times.append(result.step_us)
            generated += sum(len(output.token_ids) for output in result.outputs)
    finally:
        engine.release(key)
    return statistics.median(times[2:] or times or [0])
