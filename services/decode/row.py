"""One request at the decode worker, from its reservation until its blocks are given back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shared.deadline import Deadline
from shared.errors import DeadlineExpired
from shared.kv_hash import HASH_BLOCK_TOKENS
from shared.messages import Envelope, Reserve
from shared.sampling import SamplingParams
from shared.worker.placed import Placed, checked_deadline
from shared.worker.wire import engine_priority, read_sequence


class Phase(Enum):
    """As audits and cancel acknowledgements name it."""

    RESERVING = "queued"  # accepted by the count, the engine has not been asked yet
    WAITING = "transferring"  # its KV is on its way
    READY = "ready"  # KV is complete, joins the batch before the next step
    DECODING = "decoding"
    STOPPING = "stopping"  # ended without success; late KV could still be on its way


@dataclass(slots=True)
class Row(Placed):
    prefill: str
    speculator: str
    sampling: SamplingParams
    priority: int  # the engine's: the least goes first
    worst_blocks: int  # what it takes if it grows as long as it may
    envelope: Envelope  # of the Reserve, for its answer
    phase: Phase = Phase.RESERVING
    first_tokens: tuple[int, ...] = ()  # what prefill sampled
    transfer_us: int = 0
    ready_s: float = 0.0
    queue_us: int = 0
    num_outputs: int = 0  # tokens decoded here
    proposed_drafts: int = 0
    accepted_drafts: int = 0

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output, as known when decoding begins."""
        return [*self.spec.token_ids, *self.first_tokens]


def read_row(
    envelope: Envelope, reserve: Reserve, deadline: Deadline | None, *, vocab_size: int, max_model_len: int
) -> Row:
    """A checked row. Raises ProtocolError, InvalidRequest, or DeadlineExpired when it comes too late."""
    deadline = checked_deadline(envelope, deadline, "Reserve", "decode")
    spec = read_sequence(
        reserve.token_ids,
        reserve.prompt_len,
        reserve.block_hashes,
        reserve.sampling,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
    )
    longest = min(spec.longest, max_model_len)
    return Row(
        request_id=envelope.request_id,
        epoch=envelope.epoch,
        gateway=reserve.gateway,
        detokenizer=reserve.detokenizer,
        deadline=deadline,
        spec=spec,
        prefill=reserve.prefill,
        speculator=reserve.speculator,
        sampling=reserve.sampling,
        priority=engine_priority(reserve.priority),
        worst_blocks=-(-longest // HASH_BLOCK_TOKENS),
        envelope=envelope,
    )


def expired(row: Row) -> DeadlineExpired:
    return DeadlineExpired(
        f"the deadline passed while decode was {row.phase.value}, after {row.num_outputs} tokens; "
        "allow more time or ask for fewer tokens",
        hop="decode",
    )
