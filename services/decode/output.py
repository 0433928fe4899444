"""What goes to the detokenizer for a job's share of a step."""

from __future__ import annotations

from services.decode.job import DecodeJob
from shared.engine import TokenOutput
from shared.messages import Mark
from shared.telemetry import metrics
from shared.worker.wire import JobOutput


def job_output(job: DecodeJob, output: TokenOutput) -> JobOutput:
    """Counts it for the job. The first one is marked with how it got here, the last with how drafts did."""
    marks: tuple[Mark, ...] = ()
    if job.num_outputs == 0:
        marks += (Mark("kv.transfer", job.transfer_us), Mark("decode.queue", job.queue_us))
        metrics.HOP_SECONDS.labels("decode", "queue").observe(job.queue_us / 1e6)
    job.num_outputs += len(output.token_ids)
    job.proposed_drafts += output.proposed_drafts
    job.accepted_drafts += output.accepted_drafts
    if output.finish_reason is not None:
        marks += (
            Mark("count:draft_proposed", job.proposed_drafts),
            Mark("count:draft_accepted", job.accepted_drafts),
        )
    return JobOutput(job.detokenizer, job.request_id, job.epoch, output, marks)
