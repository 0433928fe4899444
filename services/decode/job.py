"""A job of the decode worker, from its reservation until its blocks are given back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.layer_groups import KvGroups
from shared.blocks.room import LOOK_AHEAD_TOKENS, blocks_ahead
from shared.deadline import Clock, Deadline
from shared.errors import DeadlineExpired, ProtocolError
from shared.kv.limits import SPARE_TOKENS
from shared.messages import NO_ADAPTER, AdapterId, Envelope, Reserve
from shared.worker.job import Job, JobPhase, checked_deadline
from shared.worker.wire import (
    checked_answer_scope,
    checked_share,
    checked_stay_s,
    engine_priority,
    read_sequence,
)


@dataclass(slots=True, kw_only=True)
class DecodeJob(Job):
    """`peer` is the worker that its KV comes from, "" for a prompt that is computed here: then `first_tokens`
    stays empty, and `num_outputs` counts all. Mostly that is a prefill worker, by its `peer_role`; a decode
    worker hands the request over.

    `inter_token_s`: how long its client waits from tokens to tokens; `last_token_s`: when the last ones were
    drawn, as far as this worker knows. Where it is `resumable`, `output_ids` are all tokens that were drawn
    here, for whoever takes its stream over.
    """

    speculator: str
    adapter_name: str  # what clients call it
    longest: int  # the most tokens it can grow to
    expected: int = 0  # the tokens that it is not expected to exceed; 0: nobody knows
    envelope: Envelope  # of the Reserve, for its answer
    peer_role: str = "prefill"
    peer_incarnation: int = 0  # of a decode worker
    counted_blocks: int = 0  # of the pool, in the book
    recount_at: int = 0  # with fewer tokens decoded here the count is the same
    first_tokens: tuple[int, ...] = ()  # what its peer sampled
    transfer_us: int = 0
    ready_s: float = 0.0
    queue_us: int = 0
    first_token: Deadline | None = None  # of a prompt that is computed here; None: that of all
    inter_token_s: float | None = None
    thinking: Deadline | None = None  # when what its model thinks is closed
    last_token_s: float | None = None
    guest: bool = False  # its tenant may have a place beyond the ordinary ones
    resumable: bool = False
    output_ids: list[int] = field(default_factory=list)
    adapter_id: AdapterId = NO_ADAPTER
    answer_scope: str = ""  # for whose requests its answer is kept to draft from; "": nobody
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
    stays_until_s: float = 0.0  # it is not handed over before that
    waits_for_blocks: bool = False  # it gave way to others, and has no KV until there is room again

    def awaited_too_long(self, now_s: float) -> bool:
        """Whether its client has had no token for longer than it waits."""
        if self.inter_token_s is None or self.last_token_s is None:
            return False
        return now_s - self.last_token_s >= self.inter_token_s

    def thinks_too_long(self, clock: Clock) -> bool:
        """Whether its thinking has a deadline, and that has passed."""
        return self.thinking is not None and self.thinking.expired(clock)

    @property
    def first_token_us(self) -> float:
        """Return when the first token of a prompt that is computed here is due, in microseconds of its
        clock."""
        return 1e6 * (self.first_token or self.deadline).at_s

    @property
    def inter_token_us(self) -> float:
        """The same in microseconds, infinite for a client that waits as long as it takes."""
        return math.inf if self.inter_token_s is None else 1e6 * self.inter_token_s

    @property
    def kv_since_s(self) -> float:
        """Return when it was given its KV, about."""
        return self.started_s if self.is_local else self.ready_s - self.transfer_us / 1e6

    def needed_blocks(self, groups: KvGroups, chunk_tokens: int) -> int:
        """KV blocks that it holds or comes to next. `chunk_tokens`: of a prompt, in a step at most. Where it
        is expected to end before that, no more than until there."""
        num_tokens = self.num_known_tokens
        end = self.expected if self.expected > num_tokens else self.longest
        num_rows = chunk_tokens if self.uncomputed_tokens else 1
        return blocks_ahead(num_tokens, min(end, self.longest) - num_tokens, groups, num_rows=num_rows)

    def counted_until(self, groups: KvGroups) -> int:
        """Return with how many tokens decoded here `needed_blocks` may have changed, where it is decoding;
        one more than now where that is not simple."""
        num_tokens = self.num_known_tokens
        if groups.windowed:
            return self.num_outputs + 1
        end = min(self.expected if self.expected > num_tokens else self.longest, self.longest)
        ahead = num_tokens + LOOK_AHEAD_TOKENS
        more = end - num_tokens if ahead >= end else -ahead % HASH_BLOCK_TOKENS + 1
        return self.num_outputs + max(1, more)

    @property
    def num_known_tokens(self) -> int:
        """The tokens that it has by now."""
        return len(self.spec.token_ids) + len(self.first_tokens) + self.num_outputs

    @property
    def is_handed_over(self) -> bool:
        """Whether another decode worker has had it before."""
        return self.peer_role == "decode"

    @property
    def arriving_tokens(self) -> int:
        """The tokens whose KV comes from its peer at least."""
        return len(self.spec.token_ids) - self.is_handed_over

    @property
    def spare_tokens(self) -> int:
        """The tokens whose KV may come beside that."""
        return min(SPARE_TOKENS, self.longest - self.num_tokens) if self.is_handed_over else 0

    @property
    def waits_for_grammar(self) -> bool:
        """Whether nothing is done for it before its grammar is there: until then it is computed nowhere, or
        goes on where it is."""
        return self.compiling and (self.is_local or self.is_handed_over)

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
    envelope: Envelope,
    reserve: Reserve,
    deadline: Deadline | None,
    *,
    vocab_size: int,
    max_model_len: int,
    first_token: Deadline | None = None,
    thinking: Deadline | None = None,
) -> DecodeJob:
    """Return a checked job; `first_token` is the deadline of that, and `thinking` is when that is closed, on
    this process's clock. Raises ProtocolError, InvalidRequest, or DeadlineExpired when it comes too late."""
    deadline = checked_deadline(envelope, deadline, "Reserve", "decode")
    spec = read_sequence(
        reserve.token_ids,
        reserve.prompt_len,
        reserve.block_hashes,
        reserve.sampling,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
    )
    handed_over = reserve.predecessor_incarnation > 0
    if handed_over and (not reserve.prefill or len(spec.token_ids) == spec.prompt_len):
        raise ProtocolError("Reserve hands over what has no output yet, or does not say from whom")
    if reserve.expected_tokens < 0:
        raise ProtocolError("Reserve expects fewer tokens than none; 0 says that nobody knows")
    return DecodeJob(
        request_id=envelope.request_id,
        epoch=envelope.epoch,
        gateway=reserve.gateway,
        detokenizer=reserve.detokenizer,
        deadline=deadline,
        spec=spec,
        peer=reserve.prefill,
        peer_role="decode" if handed_over else "prefill",
        peer_incarnation=reserve.predecessor_incarnation,
        speculator=reserve.speculator,
        adapter_name=reserve.adapter.name,
        priority=engine_priority(reserve.priority),
        share=checked_share(reserve.share),
        stay_s=checked_stay_s(reserve.stay_ms),
        longest=min(spec.longest, max_model_len),
        expected=spec.prompt_len + reserve.expected_tokens if reserve.expected_tokens else 0,
        envelope=envelope,
        guest=reserve.guest,
        resumable=reserve.resumable,
        adapter_id=reserve.adapter,
        answer_scope=checked_answer_scope(reserve.answer_scope),
        first_token=first_token,
        inter_token_s=reserve.inter_token_us / 1e6 if reserve.inter_token_us > 0 else None,
        thinking=thinking if spec.params.thinking is not None else None,
    )


def expiry_of(job: DecodeJob) -> DeadlineExpired:
    """Return the error of a job at work whose time is up, in all or from token to token."""
    if not job.deadline.expired():
        return DeadlineExpired(
            f"no token came within the inter-token deadline while decode was {job.phase.value}, after "
            f"{job.num_outputs} tokens; allow more time from token to token",
            hop="decode",
        )
    return DeadlineExpired(
        f"the deadline passed while decode was {job.phase.value}, after {job.num_outputs} tokens; "
        "allow more time or ask for fewer tokens",
        hop="decode",
    )
