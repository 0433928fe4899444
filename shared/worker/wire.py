"""Convert between the wire's messages and the engine's types."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.results import TokenOutput
from shared.engine.scheduling.order import LOWEST_PRIORITY, NORMAL_PRIORITY
from shared.errors import ContextExceeded, InvalidRequest
from shared.fairness.share import MAX_TENANT_CHARS, TenantShare
from shared.messages import Mark, Tokens, unpack_hashes, unpack_ids
from shared.sampling.parameters import SamplingParams

MAX_STAY_MS = 3600 * 1000
"""The longest time for which the KV of a request may be kept for the next one."""
_PRIORITIES = {0: NORMAL_PRIORITY, 1: LOWEST_PRIORITY, 2: NORMAL_PRIORITY - 1}
"""The engine's priorities by the wire's PRIORITY_NORMAL, PRIORITY_LOW and PRIORITY_HIGH; the least goes
first."""


def sequence_key(request_id: str, epoch: int) -> str:
    """The engine's name for one route of a request."""
    return f"{request_id}/{epoch}"


def engine_priority(priority: int) -> int:
    """The engine's name for a route's priority. Raises InvalidRequest for one that does not exist."""
    if priority not in _PRIORITIES:
        raise InvalidRequest(f"priority {priority} does not exist; send 0 (normal), 1 (low) or 2 (high)")
    return _PRIORITIES[priority]


def checked_share(share: TenantShare) -> TenantShare:
    """The share of a route. Raises InvalidRequest for one that no gateway would send."""
    share.check()
    return share


def checked_answer_scope(scope: str) -> str:
    """The name of those who share an answer. Raises InvalidRequest for a longer one than a gateway sends."""
    if len(scope) > MAX_TENANT_CHARS:
        raise InvalidRequest(f"answer_scope has {len(scope)} characters; send at most {MAX_TENANT_CHARS}")
    return scope


def checked_stay_s(stay_ms: int) -> float:
    """Return for how many seconds the KV of a route stays. Raises InvalidRequest for longer than a gateway
    says."""
    if stay_ms > MAX_STAY_MS:
        raise InvalidRequest(f"stay_ms is {stay_ms}; send at most {MAX_STAY_MS}")
    return stay_ms / 1000


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A checked request for the engine: position i is token_ids[i], the prompt ends at prompt_len."""

    token_ids: list[int]
    prompt_len: int
    block_hashes: list[bytes]
    params: SamplingParams

    @property
    def longest(self) -> int:
        """The most tokens the sequence can grow to, if the model's context allows it."""
        return self.prompt_len + self.params.max_tokens


def read_sequence(
    token_ids: bytes,
    prompt_len: int,
    block_hashes: bytes,
    sampling: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
) -> SequenceSpec:
    """Unpack and check what a route message says. Raises InvalidRequest or ProtocolError."""
    spec = SequenceSpec(unpack_ids(token_ids), prompt_len, unpack_hashes(block_hashes), sampling)
    count = len(spec.token_ids)
    if not 1 <= prompt_len <= count:
        raise InvalidRequest(f"prompt_len {prompt_len} is outside 1..{count}; send at least one prompt token")
    if count >= max_model_len:
        raise ContextExceeded.of(count, max_model_len)
    if len(spec.block_hashes) > count // HASH_BLOCK_TOKENS:
        raise InvalidRequest(
            f"{len(spec.block_hashes)} block hashes for {count} tokens; "
            f"send one per full {HASH_BLOCK_TOKENS}-token block"
        )
    if max(spec.token_ids) >= vocab_size:
        raise InvalidRequest(
            f"a token id is outside this model's vocabulary of {vocab_size}; check the tokenizer"
        )
    spec.params.validate(vocab_size)
    if count - prompt_len >= spec.params.max_tokens:
        raise InvalidRequest(
            f"all {spec.params.max_tokens} tokens were generated already; nothing is left to do"
        )
    return spec


class JobOutput(NamedTuple):
    """One job's share of a step, and the detokenizer that waits for it."""

    detokenizer: str
    request_id: str
    epoch: int
    output: TokenOutput
    marks: tuple[Mark, ...]


def tokens_messages(outputs: Iterable[JobOutput]) -> list[tuple[str, Tokens]]:
    """One column-wise `Tokens` per detokenizer, rows in the order given."""
    by_detokenizer: dict[str, list[JobOutput]] = defaultdict(list)
    for output in outputs:
        by_detokenizer[output[0]].append(output)
    return [(detokenizer, _columns(chosen)) for detokenizer, chosen in by_detokenizer.items()]


def _columns(rows: Sequence[JobOutput]) -> Tokens:
    _, request_ids, epochs, outputs, marks = zip(*rows, strict=True)
    _, positions, token_ids, logprobs, finish, *_ = zip(*outputs, strict=True)
    return Tokens(
        request_ids=request_ids,
        epochs=epochs,
        positions=positions,
        token_ids=token_ids,
        finish=tuple([reason or "" for reason in finish]) if any(finish) else ("",) * len(finish),
        logprobs=logprobs,
        marks=marks,
    )
