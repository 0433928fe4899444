"""A job of the prefill worker, from acceptance until its blocks are given back."""

from __future__ import annotations

from dataclasses import dataclass

from services.prefill.queue import Entry
from shared.deadline import Deadline
from shared.errors import DeadlineExpired
from shared.messages import Envelope, Prefill
from shared.worker.job import Job, checked_deadline
from shared.worker.wire import checked_share, checked_stay_s, engine_priority, read_sequence


@dataclass(slots=True, kw_only=True)
class PrefillJob(Job):
    """`peer` is the decode worker that its KV goes to."""

    first_token: Deadline
    arrived_s: float
    cached_tokens: int = 0  # a guess until the engine has admitted it
    started_s: float = 0.0
    computed_tokens: int = 0
    fetching: bool = False  # it waits for its prefix, which comes from another worker
    coming_tokens: int = 0  # those that are on their way
    fetch_s: float = 0.0  # how long it has waited for that
    fetched_tokens: int = 0  # those that have come
    refused_s: float | None = None  # when it first found no room in the engine
    charged: float = 0.0  # to its tenant, when it was taken from the queue
    lead: int = 0  # what its turn counted for then

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to compute."""
        return self.num_tokens - max(self.computed_tokens, self.cached_tokens)

    def entry(self) -> Entry:
        return Entry(
            self.key, self.remaining_tokens, self.first_token, -self.priority, self.refused_s, self.share
        )


def read_job(
    envelope: Envelope,
    prefill: Prefill,
    deadline: Deadline | None,
    first_token: Deadline | None = None,
    *,
    vocab_size: int,
    max_model_len: int,
    now_s: float,
) -> PrefillJob:
    """A checked job; without `first_token` that deadline is the whole one.

    Raises ProtocolError, InvalidRequest, or DeadlineExpired when it comes too late.
    """
    deadline = checked_deadline(envelope, deadline, "Prefill", "prefill")
    return PrefillJob(
        request_id=envelope.request_id,
        epoch=envelope.epoch,
        gateway=prefill.gateway,
        detokenizer=prefill.detokenizer,
        deadline=deadline,
        first_token=deadline if first_token is None else min(first_token, deadline),
        spec=read_sequence(
            prefill.token_ids,
            prefill.prompt_len,
            prefill.block_hashes,
            prefill.sampling,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
        ),
        peer=prefill.decode,
        priority=engine_priority(prefill.priority),
        share=checked_share(prefill.share),
        stay_s=checked_stay_s(prefill.stay_ms),
        arrived_s=now_s,
    )


def deadline_passed(when: str) -> DeadlineExpired:
    return DeadlineExpired(f"the deadline passed {when}; allow more time or send less work", hop="prefill")
