"""A job of the decode worker, from its reservation until its blocks are given back."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.blocks.layer_groups import KvGroups
from shared.blocks.room import blocks_ahead
from shared.deadline import Deadline
from shared.messages import NO_ADAPTER, AdapterId, Envelope, Reserve
from shared.worker.job import Job, JobPhase, checked_deadline
from shared.worker.wire import checked_share, engine_priority, read_sequence


@dataclass(slots=True, kw_only=True)
class DecodeJob(Job):
    """`peer` is the prefill worker that its KV comes from, "" for a prompt that is computed here: then
    `first_tokens` stays empty, and `num_outputs` counts all.

    `inter_token_s`: how long its client waits from tokens to tokens; `last_token_s`: when the last ones were
    drawn, as far as this worker knows. Where it is `resumable`, `output_ids` are all tokens that were drawn
    here, for whoever takes its stream over.
    """

    speculator: str
    adapter_name: str  # what clients call it
    longest: int  # the most tokens it can grow to
    envelope: Envelope  # of the Reserve, for its answer
    counted_blocks: int = 0  # of the pool, in the book
    first_tokens: tuple[int, ...] = ()  # what prefill sampled
    transfer_us: int = 0
    ready_s: float = 0.0
    queue_us: int = 0
    inter_token_s: float | None = None
    last_token_s: float | None = None
    guest: bool = False  # its tenant may have a place beyond the ordinary ones
    resumable: bool = False
    output_ids: list[int] = field(default_factory=list)
    adapter_id: AdapterId = NO_ADAPTER
    answered: bool = False  # its gateway knows that it is taken
    admitting: bool = False  # the engine was asked for its blocks or its place, and has not answered
    arrived_s: float = 0.0
    started_s: float = 0.0  # when the engine took its prompt
    computed_tokens: int = 0  # of its prompt, here; a guess of what is cached until the engine has it
    num_outputs: int = 0  # tokens decoded here
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    proposed_ngrams: int = 0  # of these, as are the next: found in its own text
    accepted_ngrams: int = 0

    def awaited_too_long(self, now_s: float) -> bool:
        """Whether its client has had no token for longer than it waits."""
        if self.inter_token_s is None or self.last_token_s is None:
            return False
        return now_s - self.last_token_s >= self.inter_token_s

    def needed_blocks(self, groups: KvGroups, chunk_tokens: int) -> int:
        """KV blocks that it holds or comes to next. `chunk_tokens`: of a prompt, in a step at most."""
        num_tokens = len(self.spec.token_ids) + len(self.first_tokens) + self.num_outputs
        num_rows = chunk_tokens if self.uncomputed_tokens else 1
        return blocks_ahead(num_tokens, self.longest - num_tokens, groups, num_rows=num_rows)

    @property
    def is_local(self) -> bool:
        """Whether its prompt is computed here."""
        return not self.peer

    @property
    def uncomputed_tokens(self) -> int:
        """The tokens of its prompt that this worker has to compute."""
        if not self.is_local or self.phase not in (JobPhase.QUEUED, JobPhase.COMPUTING):
            return 0
        return len(self.spec.token_ids) - self.computed_tokens

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output, as known when decoding begins."""
        return [*self.spec.token_ids, *self.first_tokens]


def read_job(
    envelope: Envelope, reserve: Reserve, deadline: Deadline | None, *, vocab_size: int, max_model_len: int
) -> DecodeJob:
    """A checked job. Raises ProtocolError, InvalidRequest, or DeadlineExpired when it comes too late."""
    deadline = checked_deadline(envelope, deadline, "Reserve", "decode")
    spec = read_sequence(
        reserve.token_ids,
        reserve.prompt_len,
        reserve.block_hashes,
        reserve.sampling,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
    )
    return DecodeJob(
        request_id=envelope.request_id,
        epoch=envelope.epoch,
        gateway=reserve.gateway,
        detokenizer=reserve.detokenizer,
        deadline=deadline,
        spec=spec,
        peer=reserve.prefill,
        speculator=reserve.speculator,
        adapter_name=reserve.adapter.name,
        priority=engine_priority(reserve.priority),
        share=checked_share(reserve.share),
        longest=min(spec.longest, max_model_len),
        envelope=envelope,
        guest=reserve.guest,
        resumable=reserve.resumable,
        adapter_id=reserve.adapter,
        inter_token_s=reserve.inter_token_us / 1e6 if reserve.inter_token_us > 0 else None,
    )
