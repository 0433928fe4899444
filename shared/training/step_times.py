"""Measure how long steps take on this machine: one token of the target, a target's step that verifies
drafts, one
of the draft."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from shared.engine import LLM, SamplingParams
from shared.training.acceptance import LONGEST_DRAFT

TIMED_STEPS = 24
DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of steps in microseconds, of a batch of one; first deciles, since other programs only make steps
    longer."""

    target_us: float
    verify_us: dict[int, float]  # by number of drafts
    draft_us: float


def measure_steps(target: LLM, draft: LLM, prompt: Sequence[int]) -> StepTimes:
    """Measure steps behind `prompt`, whose greedy continuation is drafted, so that the engine takes every
    draft."""
    num_tokens = (TIMED_STEPS + 2) * (LONGEST_DRAFT + 1)
    greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    said = target.generate([prompt], greedy)[0].token_ids
    target_us = _step_us(target, prompt, greedy, said, 0)
    measured = [_step_us(target, prompt, greedy, said, length) for length in DRAFT_LENGTHS]
    return StepTimes(
        target_us,
        never_shorter(target_us, dict(zip(DRAFT_LENGTHS, measured, strict=True))),
        _step_us(draft, prompt, greedy, (), 0),
    )


def never_shorter(target_us: float, verify_us: Mapping[int, float]) -> dict[int, float]:
    """A step with more rows takes at least as long as one with fewer, whatever a busy machine says."""
    longest = accumulate(verify_us.values(), max, initial=target_us)
    return dict(zip(verify_us, list(longest)[1:], strict=True))


def _step_us(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, said: Sequence[int], drafts: int
) -> float:
    """First decile of TIMED_STEPS steps after the first two; 0 where there was no such step."""
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
    return statistics.quantiles(times[2:], n=10)[0] if len(times) > 3 else 0.0
