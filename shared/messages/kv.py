"""The control messages of KV transfers between two workers; the bytes go elsewhere.

The sender computes: a prefill worker, or a decode worker that hands a request over. The receiver is a decode
worker, which goes on with it. A prefill worker also sends a prefix that it has cached to another one that
needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.fairness.share import TenantShare


@dataclass(frozen=True, slots=True)
class LendPrefix:
    """prefill → prefill (ask): a prompt of mine begins with these blocks, which you have; send them to me.

    `block_hashes` are their names, from the first block on, `receiver` is who I am, and `share` whose prompt
    it is, as in `Reserve`. The envelope names the transfer, and its deadline is when I shall rather compute
    them. Answered by Accepted: they stay what they are until the transfer is over, which begins with my
    KvGrant. Refused as Overloaded where they are not all there.
    """

    block_hashes: bytes
    receiver: str
    share: TenantShare


@dataclass(frozen=True, slots=True)
class KvProbe:
    """receiver → sender (ask): describe your pool, so that we may find out whether we share memory."""

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
    """receiver → sender: room is made for the request's blocks [first_blocks[g], end_block) in each group g
    of layers.

    Blocks before those are already here, or behind a window. `transport` is "nats" or "shm". `subject` takes
    the chunks, `credit_bytes` may be in flight at first.
    """

    transfer: int
    layout: str
    first_blocks: tuple[int, ...]
    end_block: int
    transport: str
    subject: str
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class KvReady:
    """sender → receiver, shm only: these (layer, block) cells can be copied from the mapped pool.

    Layers [layer, layer_end) of one group, request blocks [block, block + len(source_blocks)), which lie at
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
    """receiver → sender: the stream has been seen up to `received_bytes`, `credit_bytes` beyond may be sent.

    `received_bytes` is cumulative over all bytes put on the wire, repetitions and chunks lost on the
    way included. `credit_bytes` only grows from the grant's.
    """

    transfer: int
    received_bytes: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class KvMissing:
    """receiver → sender: send these cells again; those that were granted are numbered layer by layer."""

    transfer: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvDone:
    """sender → receiver: all cells were sent; `token_ids` are what was sampled after the tokens of the route.

    `finish` != "" when the request ended with them: nothing is left to decode, and no cell needed.
    `waited_us`: how long before this message the tokens were sampled.
    """

    transfer: int
    token_ids: tuple[int, ...]
    finish: str
    waited_us: int


@dataclass(frozen=True, slots=True)
class KvReceived:
    """receiver → sender: every cell is in and verified; the sender may release its blocks."""

    transfer: int


@dataclass(frozen=True, slots=True)
class KvAbort:
    """either way: this transfer is over without success; the other side answers KvAbortAck."""

    transfer: int
    reason: str


@dataclass(frozen=True, slots=True)
class KvAbortAck:
    transfer: int
