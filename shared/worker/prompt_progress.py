"""Track how far the prompts are that a worker computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shared.engine import BLOCK_TOKENS, StepResult
from shared.telemetry import metrics
from shared.worker.marks import ComputeUse, StepCost


class PromptJob(Protocol):
    use: ComputeUse
    computed_tokens: int
    """The computed tokens of its prompt, cached ones included."""


def record_progress(jobs: Mapping[str, PromptJob], result: StepResult, cost: StepCost) -> None:
    """Note what a step did for the prompts of `jobs`, by key, and what that took; blocks that others computed
    count as hits, and cost nothing."""
    for progress in (*result.reused, *result.computed):
        job = jobs.get(progress.key)
        if job is not None:
            job.computed_tokens = progress.end_token
    for computed in result.computed:
        if (job := jobs.get(computed.key)) is not None:
            job.use.engine_us += cost.row_us * (computed.end_token - computed.start_token)
    for reused in result.reused:
        metrics.PREFIX_CACHE_HITS.inc(reused.end_token // BLOCK_TOKENS - reused.start_token // BLOCK_TOKENS)
