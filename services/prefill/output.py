"""Make the row for the detokenizer when a prompt is computed: its first token, and how long that took."""

from __future__ import annotations

from services.prefill.job import PrefillJob
from shared.engine import TokenOutput
from shared.messages import Mark
from shared.worker.marks import hop_mark
from shared.worker.wire import JobOutput


def job_output(job: PrefillJob, output: TokenOutput, now_s: float, kv_bytes: int, unit: str) -> JobOutput:
    """`kv_bytes` are held for it; `unit`: what the engine's time is of."""
    job.use.hold(kv_bytes, now_s, job.started_s)
    marks = (
        hop_mark("prefill", "queue", job.started_s - job.arrived_s - job.fetch_s),
        *_fetch_marks(job),
        hop_mark("prefill", "compute", now_s - job.started_s),
        *job.use.take_marks("prefill", unit),
    )
    return JobOutput(job.detokenizer, job.request_id, job.epoch, output, marks)


def _fetch_marks(job: PrefillJob) -> tuple[Mark, ...]:
    """Return how long it has waited for a prefix that another worker had, and how many tokens have come."""
    if not job.fetch_s:
        return ()
    return hop_mark("prefill", "fetch", job.fetch_s), Mark("count:fetched_tokens", job.fetched_tokens)
