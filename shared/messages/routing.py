"""The back half of a request: the gateway places it, cancels it, and hears when it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass

from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.messages.adapters import NO_ADAPTER, AdapterId
from shared.sampling.parameters import SamplingParams

WARM_EPOCH = 0
"""The epoch of what is warmed for a request: before all of its routes."""
ALL_EMITTED = -1
TELL_REPLAY = -2
"""The value of `Open.emitted_chars` where the client has all the text that the replayed ids give."""


@dataclass(frozen=True, slots=True)
class Open:
    """gateway → detokenizer: expect tokens of this request.

    `prompt_tail`: the last prompt ids, the context in which the first output token is decoded.
    `replay`: output ids the gateway has already got, `emitted_chars`: how much of their text went
    to the client; both 0 for a new request. The next token has position `next_position`. A gateway that has
    taken over the stream of another one says ALL_EMITTED, or TELL_REPLAY where it has to read that text once
    more: then it comes at once, in a row without ids, as it would have with the last of them.
    `prefill` and `decode` are the instances that send the tokens; "" = whoever does. `shown_ids`: special
    tokens that stand in the text all the same. The text ends before any of `stop`, and before what matches
    any of `stop_regex`.
    """

    gateway: str
    prompt_tail: bytes
    replay: bytes
    emitted_chars: int
    next_position: int
    stop: tuple[str, ...]
    prefill: str = ""
    decode: str = ""
    shown_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """gateway → decode: make room; KV will come from `prefill`, tokens go to `detokenizer`.

    `prefill` is "" where decode itself is to compute the prompt and to send the first token.
    `token_ids` = prompt + tokens generated so far; `prompt_len` marks the border between them.
    `speculator` is "" when drafts are off. `inter_token_us` is the longest time that its client waits from
    tokens to tokens; 0: any. `adapter` is what it is computed with, NO_ADAPTER for the model alone. `share`:
    whose it is among those who share the worker, by the tenant's digest. `guest`: that tenant has less than
    another, and may have a place beyond the ordinary ones. `resumable`: another gateway may take the stream
    over (`TakeOver`). `stay_ms`: when it has ended its KV stays so long before that of others, as its next
    prompt is expected to go on from it; 0: as any, below 0: no prompt will. `thinking_us`: when its model's
    thinking is closed, on the clock of `deadline_us` of the envelope; 0: never. `answer_scope`: a name of
    those among whom its KV is shared, for whose requests its answer is kept to draft from; "": nobody.
    `expected_tokens`: its answer is not expected to exceed them, as answers like it do not, so that more room
    than that need not be kept; 0: nobody knows. One that does exceed them goes on. `first_token_us`: the
    deadline of the token that comes first from a prompt that is computed here, as in `Prefill`; 0: the same.

    Where another decode worker hands the request over, KV comes from that one, which `prefill` names then,
    in its life `predecessor_incarnation` (0: from a prefill worker): it has computed all but the last of
    `token_ids`, and goes on until it stops. Who does not know the field knows no prefill worker of that
    name, and refuses.
    """

    token_ids: bytes
    prompt_len: int
    block_hashes: bytes
    sampling: SamplingParams
    gateway: str
    detokenizer: str
    prefill: str
    speculator: str
    priority: int
    inter_token_us: int = 0
    adapter: AdapterId = NO_ADAPTER
    share: TenantShare = OPEN_SHARE
    guest: bool = False
    resumable: bool = False
    predecessor_incarnation: int = 0
    stay_ms: int = 0
    thinking_us: int = 0
    answer_scope: str = ""
    expected_tokens: int = 0
    first_token_us: int = 0


@dataclass(frozen=True, slots=True)
class TakeOver:
    """gateway → decode (ask): the client of the envelope's request has come to me, whoever placed it.

    Answered by HandedOver; the work for the other gateway ends. What is not here, not resumable or another
    tenant's fails as `stream_lost`. `tenant`: the digest of the client's.
    """

    tenant: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The stream as far as decode knows it: `token_ids` = prompt + output, `prompt_len` the border between
    them. `finished`: its last token is among them. `sampling` and `adapter` as in `Reserve`."""

    token_ids: bytes
    prompt_len: int
    sampling: SamplingParams
    adapter: AdapterId
    finished: bool


@dataclass(frozen=True, slots=True)
class PrefixLender:
    """The prefill worker that has most of a prompt cached, `blocks` of its first ones, in its life
    `incarnation`, as its heartbeats said; `instance` is "" where no other has notably more than who is asked.
    It has computed `tokens_per_s` lately, 0 unmeasured, and `queued_tokens` wait there."""

    instance: str = ""
    incarnation: int = 0
    blocks: int = 0
    queued_tokens: int = 0
    tokens_per_s: float = 0.0


NO_LENDER = PrefixLender()


@dataclass(frozen=True, slots=True)
class Prefill:
    """gateway → prefill: compute this, send the next token to `detokenizer`, the KV to `decode`.

    `first_token_us` is the deadline of that token, by which prompts are ordered; like `deadline_us` of the
    envelope, which is the whole request's. 0: the same. `adapter`, `share` and `stay_ms` as in
    `Reserve`. The worker may fetch what it does not have of the prompt from `lender`, or compute it.
    """

    token_ids: bytes
    prompt_len: int
    block_hashes: bytes
    sampling: SamplingParams
    gateway: str
    detokenizer: str
    decode: str
    priority: int
    first_token_us: int = 0
    adapter: AdapterId = NO_ADAPTER
    share: TenantShare = OPEN_SHARE
    stay_ms: int = 0
    lender: PrefixLender = NO_LENDER


@dataclass(frozen=True, slots=True)
class Warm:
    """gateway → prefill or decode, whichever is likely to compute the prompt: have the KV of this prefix
    ready, as long as there is nothing else to do. No reply.

    Its envelope names the request, WARM_EPOCH, and the deadline from which on nobody has a use for it. A
    later one of the same request takes its place, a cancel or any route ends it. `adapter` as in
    `Reserve`. `patient`: it waits while there is something else to do, as nobody needs it yet.
    """

    token_ids: bytes
    block_hashes: bytes
    gateway: str
    adapter: AdapterId = NO_ADAPTER
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop and give back everything held for request_id at epochs <= the envelope's.

    `reason` is a word of the outcome vocabulary: cancelled, expired, stop, failed, replaced, shutdown; or
    delivered: the client has the end of a stream that could be resumed.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class CancelAck:
    """`held`: whether anything was held; the phase it was in ("" when nothing)."""

    held: bool
    phase: str


@dataclass(frozen=True, slots=True)
class ClientCancel:
    """gateway → gateway: a client of ours wants a request of yours ended; answered by CancelAck.

    `tenant` is whose client it is: a request of another tenant is not found.
    """

    tenant: str


@dataclass(frozen=True, slots=True)
class Lost:
    """any holder → gateway: this request cannot go on here (crash of a part, expired lease, gap).

    The session re-places it under a new epoch, or ends it when `code` is not worth a retry.
    """

    code: str
    message: str
    hop: str


@dataclass(frozen=True, slots=True)
class LivenessCheck:
    """gateway → decode (ask): do you work on this request at this epoch?"""


@dataclass(frozen=True, slots=True)
class HoldReport:
    """False also for a request that has ended as it should: then its last row has been sent."""

    held: bool
