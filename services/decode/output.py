"""Make the row that goes to the detokenizer for a job's share of a step."""

from __future__ import annotations

from collections.abc import Callable

from services.decode.job import DecodeJob
from shared.engine import TokenOutput
from shared.messages import Mark
from shared.records import maker_of
from shared.worker.job import JobPhase
from shared.worker.marks import TOLD_EVERY_TOKENS, StepCost, hop_mark
from shared.worker.wire import JobOutput


def job_output(
    job: DecodeJob, output: TokenOutput, now_s: float, cost: StepCost, kv_bytes: Callable[[str], int]
) -> JobOutput:
    """Counts it for the job. The first one is marked with how it got here, the last with how drafts did, and
    one in TOLD_EVERY_TOKENS with what it has taken of this worker."""
    marks: tuple[Mark, ...] = ()
    use, num_tokens, proposed = job.use, len(output.token_ids), output.proposed_drafts
    if job.phase is JobPhase.DECODING:  # else its row was one of its prompt, which has been counted
        use.engine_us += cost.row_us * (1 + proposed)
    use.untold_tokens += num_tokens
    if job.num_outputs == 0:
        marks += _first_marks(job, now_s)
    job.num_outputs += num_tokens
    if job.resumable:
        job.output_ids += output.token_ids
    if proposed:
        _count_drafts(job, output)
    finished = output.finish_reason is not None
    if finished:
        marks += draft_counts(job)
    if finished or use.untold_tokens >= TOLD_EVERY_TOKENS:
        use.hold(kv_bytes(job.key), now_s, job.kv_since_s)
        marks += use.take_marks("decode", cost.unit)
    return _output_of((job.detokenizer, job.request_id, job.epoch, output, marks))


_output_of = maker_of(JobOutput)


def _count_drafts(job: DecodeJob, output: TokenOutput) -> None:
    job.proposed_drafts += output.proposed_drafts
    job.accepted_drafts += output.accepted_drafts
    if output.looked_up:
        job.proposed_ngrams += output.proposed_drafts
        job.accepted_ngrams += output.accepted_drafts


def draft_counts(job: DecodeJob) -> tuple[Mark, ...]:
    """Say how drafts of the job did here."""
    return (
        Mark("count:draft_proposed", job.proposed_drafts),
        Mark("count:draft_accepted", job.accepted_drafts),
        Mark("count:ngram_proposed", job.proposed_ngrams),
        Mark("count:ngram_accepted", job.accepted_ngrams),
    )


def _first_marks(job: DecodeJob, now_s: float) -> tuple[Mark, ...]:
    if job.is_local:
        return _prompt_marks(job, now_s)
    if job.is_handed_over:
        return (hop_mark("decode", "hand_over", (job.transfer_us + job.queue_us) / 1e6),)
    return _transfer_marks(job)


def _prompt_marks(job: DecodeJob, now_s: float) -> tuple[Mark, ...]:
    return (
        hop_mark("decode", "prefill_queue", job.started_s - job.arrived_s),
        hop_mark("decode", "prefill_compute", now_s - job.started_s),
    )


def _transfer_marks(job: DecodeJob) -> tuple[Mark, ...]:
    return Mark("kv.transfer", job.transfer_us), hop_mark("decode", "queue", job.queue_us / 1e6)
