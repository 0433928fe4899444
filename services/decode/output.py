"""What goes to the detokenizer for a row's share of a step."""

from __future__ import annotations

from services.decode.row import Row
from shared.engine import TokenOutput
from shared.messages import Mark
from shared.telemetry import metrics
from shared.worker.wire import TokenRow


def token_row(row: Row, output: TokenOutput) -> TokenRow:
    """Counts the output, and marks the first row with how it got here, the last with how its drafts did."""
    marks: tuple[Mark, ...] = ()
    if row.num_outputs == 0:
        marks += (Mark("kv.transfer", row.transfer_us), Mark("decode.queue", row.queue_us))
        metrics.HOP_SECONDS.labels("decode", "queue").observe(row.queue_us / 1e6)
    row.num_outputs += len(output.token_ids)
    row.proposed_drafts += output.proposed_drafts
    row.accepted_drafts += output.accepted_drafts
    metrics.DRAFT_PROPOSED.inc(output.proposed_drafts)
    metrics.DRAFT_ACCEPTED.inc(output.accepted_drafts)
    if output.finish_reason is not None:
        marks += (
            Mark("count:draft_proposed", row.proposed_drafts),
            Mark("count:draft_accepted", row.accepted_drafts),
        )
    return TokenRow(row.detokenizer, row.request_id, row.epoch, output, marks)
