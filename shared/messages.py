"""Every message that crosses the bus, as frozen dataclasses. `shared.bus.codec` packs them.

Ids of tokens travel as little-endian u32 bytes and block hashes as little-endian u64 bytes
(`pack_ids`, `pack_hashes`), because a prompt is long and a list of boxed integers is slow.
The two messages of the hot path, `Tokens` and `Text`, are column-wise: one message per step and
receiver, row i of every column belongs to request_ids[i].

Positions are absolute: position p is the p-th token of prompt + output, counted from 0.
Durations are integers in microseconds. Times are unix microseconds of the sender's clock.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import PenstockError, ProtocolError, error_from_code
from shared.sampling import SamplingParams, TokenLogprob

PROTOCOL_VERSION = 3
MAX_PROMPT_TOKENS = 1 << 20
"""Longest id list a message may carry (4 MB); the model's own limit is far below."""

_U32 = "I"
_U64 = "Q"


def _pack(typecode: str, values: Iterable[int]) -> bytes:
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(typecode: str, data: bytes) -> list[int]:
    unpacked = array(typecode)
    if len(data) % unpacked.itemsize or len(data) > MAX_PROMPT_TOKENS * unpacked.itemsize:
        raise ProtocolError(
            f"{len(data)} bytes are not a list of {unpacked.itemsize}-byte integers within the limit"
        )
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


def pack_ids(token_ids: Iterable[int]) -> bytes:
    return _pack(_U32, token_ids)


def unpack_ids(data: bytes) -> list[int]:
    return _unpack(_U32, data)


def pack_hashes(hashes: Iterable[int]) -> bytes:
    return _pack(_U64, hashes)


def unpack_hashes(data: bytes) -> list[int]:
    return _unpack(_U64, data)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every message carries besides its body.

    `origin` is the gateway instance whose clock stamped `deadline_us` ("" with no deadline = 0).
    `reply` is the subject an answer goes to ("" when none is expected).
    """

    request_id: str = ""
    epoch: int = 0
    deadline_us: int = 0
    origin: str = ""
    trace: str = ""
    reply: str = ""


# ---- answers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver holds the request now. `cached_tokens`: how much of the prompt it already has."""

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A typed error on the wire; the bus raises it again at the asker."""

    code: str
    message: str
    hop: str = ""
    retry_after_ms: int = 0

    @classmethod
    def of(cls, error: PenstockError) -> Failure:
        return cls(error.code, error.message, error.hop, error.retry_after_ms)

    def to_error(self) -> PenstockError:
        return error_from_code(self.code, self.message, hop=self.hop, retry_after_ms=self.retry_after_ms)


# ---- front half: gateway asks retriever and tokenizer ----------------------------------------


@dataclass(frozen=True, slots=True)
class ChatTurn:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Exactly one of `text`, `chat`, `token_ids` is set.

    `template_optional`: render the turns as plain text when the model has no chat template,
    instead of refusing.
    """

    text: str | None = None
    chat: tuple[ChatTurn, ...] = ()
    token_ids: bytes | None = None
    template_optional: bool = False


@dataclass(frozen=True, slots=True)
class Tokenized:
    token_ids: bytes
    block_hashes: bytes
    tokenize_us: int


@dataclass(frozen=True, slots=True)
class Retrieve:
    query: str
    k: int
    may_degrade: bool


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    source: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Retrieved:
    """`degraded` names what was skipped for want of time ("" = nothing)."""

    passages: tuple[ScoredPassage, ...]
    degraded: str
    embed_us: int
    search_us: int


# ---- back half: the gateway places a request --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """gateway → detokenizer: expect tokens of this request.

    `prompt_tail`: the last prompt ids, the context in which the first output token is decoded.
    `replay`: output ids the gateway has already got, `emitted_chars`: how much of their text went
    to the client; both 0 for a new request. The next token has position `next_position`.
    """

    gateway: str
    prompt_tail: bytes
    replay: bytes
    emitted_chars: int
    next_position: int
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """gateway → decode: make room; KV will come from `prefill`, tokens go to `detokenizer`.

    `token_ids` = prompt + tokens generated so far; `prompt_len` marks the border between them.
    `speculator` is "" when drafts are off.
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


@dataclass(frozen=True, slots=True)
class Prefill:
    """gateway → prefill: compute this, send the next token to `detokenizer`, the KV to `decode`."""

    token_ids: bytes
    prompt_len: int
    block_hashes: bytes
    sampling: SamplingParams
    gateway: str
    detokenizer: str
    decode: str
    priority: int


@dataclass(frozen=True, slots=True)
class Warm:
    """gateway → prefill: best-effort, low priority: have the KV of this prefix ready. No reply."""

    token_ids: bytes
    block_hashes: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop and give back everything held for request_id at epochs <= the envelope's.

    `reason` is a word of the outcome vocabulary: cancelled, expired, stop, failed, replaced, shutdown.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class CancelAck:
    """`held`: whether anything was held; the phase it was in ("" when nothing)."""

    held: bool
    phase: str


# ---- token path ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase measured at a hop: a row of the timeline, `duration_us` long."""

    phase: str
    duration_us: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """prefill | decode → detokenizer, one message per step; columns of equal length.

    positions[i] is the position of token_ids[i][0]. finish[i] is "" while the request goes on,
    else "stop" (eos or a stop id, which is then the last id, or the grammar's end), "length", or "error":
    nothing was left to draw after these ids, so the request has failed.
    """

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    finish: tuple[str, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """detokenizer → gateway, one message per gateway and step; columns as in `Tokens`.

    Ids come at once, text when it can no longer change: texts[i] may be "" or belong to earlier
    ids. finish[i] gains "stop_string": text is cut before the match, the request is over.
    """

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    finish: tuple[str, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """any holder → gateway: this request cannot go on here (crash of a part, expired lease, gap).

    The session re-places it under a new epoch, or ends it when `code` is not worth a retry.
    """

    code: str
    message: str
    hop: str


# ---- KV path ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvProbe:
    """decode → prefill (ask): describe your pool, so that we may find out whether we share memory."""

    layout: str


@dataclass(frozen=True, slots=True)
class KvSegment:
    """The answer: where the pool's memory can be opened on this host, and the secret found there.

    pid = 0: this pool cannot be shared.
    """

    pid: int
    fd: int
    nbytes: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class KvGrant:
    """decode → prefill: room is made for blocks [first_block, first_block + num_blocks) of the request.

    Blocks before first_block are already here. `transport` is "nats" or "shm". `subject` takes the
    chunks, `credit_bytes` may be in flight at first.
    """

    transfer: int
    layout: str
    first_block: int
    num_blocks: int
    transport: str
    subject: str
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class KvReady:
    """prefill → decode, shm only: these (layer, block) cells can be copied from the mapped pool.

    Layers [layer, layer_end), request blocks [block, block + len(source_blocks)), which lie at
    `source_blocks` of the sender's pool. checksums[i] is XXH3-64 over those blocks of layer + i: the
    receiver reads memory that the sender may reuse when it believes the transfer to be over.
    """

    transfer: int
    layer: int
    layer_end: int
    block: int
    source_blocks: tuple[int, ...]
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvCredit:
    """decode → prefill: the stream has been seen up to `received_bytes`, `credit_bytes` beyond may be sent.

    `received_bytes` is cumulative over all bytes put on the wire, repetitions and chunks lost on the
    way included. `credit_bytes` only grows from the grant's.
    """

    transfer: int
    received_bytes: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class KvMissing:
    """decode → prefill: send these cells again; each is layer * num_blocks + (block - first_block)."""

    transfer: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvDone:
    """prefill → decode: all cells were sent; `token_ids` are what prefill sampled after the prompt.

    `finish` != "" when the request ended with them: nothing is left to decode, and no cell needed.
    `waited_us`: how long before this message the tokens were sampled.
    """

    transfer: int
    token_ids: tuple[int, ...]
    finish: str
    waited_us: int


@dataclass(frozen=True, slots=True)
class KvReceived:
    """decode → prefill: every cell is in and verified; the sender may release its blocks."""

    transfer: int


@dataclass(frozen=True, slots=True)
class KvAbort:
    """either way: this transfer is over without success; the other side answers KvAbortAck."""

    transfer: int
    reason: str


@dataclass(frozen=True, slots=True)
class KvAbortAck:
    transfer: int


# ---- drafts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftOpen:
    """decode → speculator: keep a draft session; envelope.request_id + epoch is its key."""

    token_ids: bytes
    prompt_len: int
    sampling: SamplingParams
    decode: str


@dataclass(frozen=True, slots=True)
class DraftCommit:
    """decode → speculator, one per verifier step: what became final, and the wish for a next draft.

    Row i: `token_ids[i]` are final from position `bases[i]` on; draft `lengths[i]` tokens after
    them (0 = none wanted).
    """

    decode: str
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """speculator → decode: row i drafts token_ids[i] from position bases[i] on. Late ones are dropped."""

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    bases: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class DraftClose:
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftResync:
    """speculator → decode: I do not know this session (restart, eviction, gap); open it again."""

    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]


# ---- fleet --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Every instance, every 250 ms and on change, to `fleet.<role>.<instance>`.

    `incarnation` is the unix µs of the process's start: a new one means that all its state is gone.
    `state` is loading | ready | draining | stopped. Prefix events: `added` and `removed` block hashes
    since the last heartbeat; `prefix_event_id` counts them, so that a gap is seen.
    """

    role: str
    instance: str
    incarnation: int
    state: str
    sent_unix_us: int
    host: str
    pid: int
    metrics: str
    model: str
    layout: str
    capacity: int
    live: int
    queued: int
    queued_tokens: int
    kv_blocks: int
    kv_blocks_free: int
    tokens_per_s: float
    prefix_event_id: int
    added: bytes
    removed: bytes


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """any → an instance (ask): all the block hashes you have."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    prefix_event_id: int
    hashes: bytes


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """any → an instance (ask): what do you hold, per request?"""


@dataclass(frozen=True, slots=True)
class Held:
    """`kind`: kv_blocks, session, decoder, lease, draft, transfer, queued; `count` of them."""

    request_id: str
    kind: str
    count: int
    phase: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    role: str
    instance: str
    incarnation: int
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new work, finish what is there, then exit."""


Message = (
    Accepted
    | Failure
    | Tokenize
    | Tokenized
    | Retrieve
    | Retrieved
    | Open
    | Reserve
    | Prefill
    | Warm
    | Cancel
    | CancelAck
    | Tokens
    | Text
    | Lost
    | KvProbe
    | KvSegment
    | KvGrant
    | KvReady
    | KvCredit
    | KvMissing
    | KvDone
    | KvReceived
    | KvAbort
    | KvAbortAck
    | DraftOpen
    | DraftCommit
    | DraftBlock
    | DraftClose
    | DraftResync
    | Heartbeat
    | SnapshotRequest
    | Snapshot
    | AuditRequest
    | AuditReport
    | Drain
)
