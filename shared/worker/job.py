"""One route of a request at a worker: what every worker with an engine knows of it. No I/O."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum

from shared.blocks.block_hash import max_cached_blocks
from shared.deadline import Deadline
from shared.engine.sampling.grammar import CompiledGrammar
from shared.errors import ProtocolError
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.kv.chunk import MAX_EPOCH
from shared.kv.transfer_key import TransferKey
from shared.messages import Envelope
from shared.sampling.parameters import NO_LOGPROBS, SamplingParams
from shared.worker.marks import ComputeUse
from shared.worker.wire import SequenceSpec, sequence_key


class JobPhase(Enum):
    """The phase of a job, as audits and cancel acknowledgements name it.

    prefill: queued → computing → transferring. decode: queued → transferring → ready → decoding, or where it
    computes the prompt itself queued → computing → decoding; → leaving, where it is handed over.
    """

    QUEUED = "queued"  # accepted; the engine has not been asked yet
    COMPUTING = "computing"
    TRANSFERRING = "transferring"  # its KV is on its way
    READY = "ready"  # KV is complete, joins the batch before the next step
    DECODING = "decoding"
    LEAVING = "leaving"  # decoded here no more: it goes on at another worker, which gets the rest of its KV
    STOPPING = "stopping"  # ended without success; what is on its way is not acknowledged yet


@dataclass(slots=True, kw_only=True)
class Job:
    """A request under one epoch. `peer` is the worker at the other end of its KV transfer.

    The engine takes it only when `grammar` is there, where its parameters want one.
    """

    request_id: str
    epoch: int
    gateway: str
    detokenizer: str
    peer: str
    deadline: Deadline
    spec: SequenceSpec
    priority: int  # the engine's: the least goes first
    share: TenantShare = OPEN_SHARE
    stay_s: float = 0.0  # its KV stays so long when it has ended; below 0: for nobody
    phase: JobPhase = JobPhase.QUEUED
    grammar: CompiledGrammar | None = None
    adapter: str = ""  # what the engine calls it
    use: ComputeUse = field(default_factory=ComputeUse)
    key: str = field(init=False)  # the engine's name for it

    def __post_init__(self) -> None:
        self.key = sequence_key(self.request_id, self.epoch)

    @property
    def num_tokens(self) -> int:
        """The tokens of its prompt, and of what was generated before it was routed here."""
        return len(self.spec.token_ids)

    @property
    def max_reusable_blocks(self) -> int:
        """The most blocks to reuse; none where log-probabilities are wanted, which take all of its logits."""
        wanted = self.spec.params.prompt_logprobs != NO_LOGPROBS
        return 0 if wanted else max_cached_blocks(self.num_tokens)

    @property
    def compiling(self) -> bool:
        """Its grammar is not compiled yet."""
        return self.spec.params.grammar is not None and self.grammar is None

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters for the engine."""
        if self.grammar is None:
            return self.spec.params
        return dataclasses.replace(self.spec.params, grammar=self.grammar)

    @property
    def transfer_key(self) -> TransferKey:
        return self.request_id, self.epoch


def checked_deadline(envelope: Envelope, deadline: Deadline | None, message: str, hop: str) -> Deadline:
    """The deadline of a route. Raises ProtocolError for a bad envelope, DeadlineExpired when too late."""
    if deadline is None or not envelope.request_id or not 0 < envelope.epoch <= MAX_EPOCH:
        raise ProtocolError(f"{message} needs a request_id, an epoch from 1 and a deadline in its envelope")
    deadline.check(hop)
    return deadline
