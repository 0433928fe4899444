"""Track how far the prompts are that a worker computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shared.engine import BLOCK_TOKENS, StepResult
from shared.telemetry import metrics


class PromptJob(Protocol):
    computed_tokens: int
    """The computed tokens of its prompt, cached ones included."""


def record_progress(jobs: Mapping[str, PromptJob], result: StepResult) -> None:
    """Note what a step did for the prompts of `jobs`, by key; blocks that others computed count as hits."""
    for progress in (*result.reused, *result.computed):
        job = jobs.get(progress.key)
        if job is not None:
            job.computed_tokens = progress.end_token
    for reused in result.reused:
        metrics.PREFIX_CACHE_HITS.inc(reused.end_token // BLOCK_TOKENS - reused.start_token // BLOCK_TOKENS)
