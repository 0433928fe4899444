"""What goes to the detokenizer when a prompt is computed: its first token, and how long that took."""

from __future__ import annotations

from services.prefill.job import PrefillJob
from shared.engine import TokenOutput
from shared.messages import Mark
from shared.telemetry import metrics
from shared.worker.wire import JobOutput


def job_output(job: PrefillJob, output: TokenOutput, now_s: float) -> JobOutput:
    queue_us, compute_us = _us(job.started_s - job.arrived_s), _us(now_s - job.started_s)
    metrics.HOP_SECONDS.labels("prefill", "queue").observe(queue_us / 1e6)
    metrics.HOP_SECONDS.labels("prefill", "compute").observe(compute_us / 1e6)
    marks = (Mark("prefill.queue", queue_us), Mark("prefill.compute", compute_us))
    return JobOutput(job.detokenizer, job.request_id, job.epoch, output, marks)


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
