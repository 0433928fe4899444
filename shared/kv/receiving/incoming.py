"""One transfer at its receiver, as a pure state machine: no I/O, no clock of its own.

    waiting ──granted──► receiving ──all cells verified, KvDone in──► (complete)
       └────────────────────┴── abort or failure ──► aborting ──ack, lease, epoch──► (released)

A cell is VERIFIED once, when a body that holds it matched its checksum; it is never written again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.deadline import Deadline
from shared.errors import ChecksumMismatch, DeadlineExpired, PenstockError, ProtocolError, Unavailable
from shared.kv.cells import Run
from shared.kv.chunk import ChunkHeader
from shared.kv.limits import (
    ACK_BYTES,
    ACK_DELAY_S,
    LEASE_S,
    MAX_BAD_CHUNKS,
    MAX_MISSING_CELLS,
    MAX_REQUESTS_AGAIN,
    MAX_WAITED_S,
    NO_PROGRESS_S,
    SHM_RUN_BYTES,
)
from shared.kv.request_blocks import RequestBlocks
from shared.kv.transports import Transport
from shared.messages import KvDone, KvReady

MISSING, VERIFIED = 0, 1


class IncomingPhase(enum.StrEnum):
    WAITING = "waiting"
    RECEIVING = "receiving"
    ABORTING = "aborting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Copy:
    """Cells that lie at `source_blocks` of the sender's mapped pool; `checksum` over all of them."""

    run: Run
    source_blocks: tuple[int, ...]
    checksum: int


class IncomingTransfer:
    """`blocks` is where they go, and which of them are transferred. Where the request goes on at its sender
    meanwhile, `filled_tokens` are those whose KV comes at least, and `blocks` has room for more: how many
    turn out to be needed the tokens of KvDone say."""

    def __init__(
        self,
        request_id: str,
        epoch: int,
        transfer: int,
        *,
        origin: str,
        prefill: str,
        incarnation: int,
        blocks: RequestBlocks,
        deadline: Deadline,
        cell_bytes: int,
        now_s: float,
        peer_role: str = "prefill",
        filled_tokens: int | None = None,
    ) -> None:
        self.key = (request_id, epoch)
        self.transfer = transfer
        self.origin = origin
        self.peer = prefill
        self.peer_role = peer_role
        self._filled_tokens = filled_tokens
        self.incarnation = incarnation
        self.blocks = blocks
        self.deadline = deadline
        self.cell_bytes = cell_bytes
        self._cells = blocks.cells()
        self.total_bytes = self._cells.size * cell_bytes
        self.phase = IncomingPhase.WAITING
        self.transport: Transport | None = None
        self.window_bytes = 0
        self.abort_reason = ""
        self.done: KvDone | None = None
        self.copies: deque[Copy] = deque()
        self.started_s = now_s
        self.probing = False
        """Whether it waits to know if it can share memory with its sender."""
        self._done_s = 0.0
        self._missing = self._cells.size
        self._seen_bytes = 0  # of the sender's stream
        self._credited_bytes = 0
        self._credited_s = now_s
        self._progress_s = now_s
        self._asked_s = now_s
        self._asked = 0
        self._bad = 0
        self.heard = False
        self._news = False  # the sender needs a KvCredit, however little has landed
        self._abort_s = 0.0

    # ---- what happens to it ------------------------------------------------------------------

    def grant(self, transport: Transport, window_bytes: int, now_s: float) -> None:
        self.phase = IncomingPhase.RECEIVING
        self.transport = transport
        self.window_bytes = window_bytes
        self._asked_s = self._progress_s = now_s

    def accept(self, header: ChunkHeader, body_bytes: int) -> tuple[Run, bool]:
        """Check a chunk before a byte of it lands: its cells, and whether any of them is still missing.

        Raises ProtocolError for cells that are not of this transfer and for bytes without credit.
        """
        run = Run(header.layer, header.block, header.block + header.blocks)
        if not self._cells.holds(run):
            raise ProtocolError("a KV chunk names cells outside of its transfer")
        if not body_bytes == header.body_bytes == run.count * self.cell_bytes:
            raise ProtocolError("a KV chunk has another length than its cells")
        if header.offset + body_bytes > self._credited_bytes + self.window_bytes:
            raise ProtocolError("a KV chunk came without credit")
        self.heard = True
        return run, any(True for _ in self._cells.runs(MISSING, run))

    def missing_runs(self, run: Run) -> tuple[Run, ...]:
        return tuple(self._cells.runs(MISSING, run))

    def saw(self, header: ChunkHeader) -> None:
        """The chunk is off the wire, whatever became of its body."""
        if header.offset + header.body_bytes <= self._credited_bytes:
            self._news = True  # the sender repeats what was acknowledged: a KvCredit was lost
        self._seen_bytes = max(self._seen_bytes, header.offset + header.body_bytes)

    def verified(self, run: Run, now_s: float) -> None:
        for fresh in self.missing_runs(run):
            self._missing -= fresh.count
            self._cells.set(fresh, VERIFIED)
            self._progress_s = now_s
            self._asked = 0

    def has_too_many_bad_chunks(self) -> bool:
        """Count one more chunk that cannot be believed, and return whether that was one too many."""
        self._bad += 1
        return self._bad > MAX_BAD_CHUNKS

    def failed_checksum(self, run: Run) -> tuple[int, ...]:
        """The cells to ask for again. Raises ChecksumMismatch when it happens too often."""
        if self.has_too_many_bad_chunks():
            raise ChecksumMismatch(
                f"{self._bad} KV chunks of one transfer failed their checksum; check the network path",
                hop="decode",
            )
        return tuple(number for cells in self.missing_runs(run) for number in self._cells.numbers(cells))

    def take_ready(self, ready: KvReady) -> None:
        """Queue the copies that a KvReady announces. Raises ProtocolError when it does not fit."""
        self.heard = True
        blocks = len(ready.source_blocks)
        first = Run(ready.layer, ready.block, ready.block + blocks)
        last = Run(ready.layer_end - 1, ready.block, ready.block + blocks)
        if not (self._cells.holds(first) and self._cells.holds(last) and ready.layer < ready.layer_end):
            raise ProtocolError("KvReady names cells outside of its transfer")
        if len(set(self.blocks.group_of[ready.layer : ready.layer_end])) > 1:
            raise ProtocolError("KvReady names layers whose blocks cannot be the same")
        if len(ready.checksums) != ready.layer_end - ready.layer:
            raise ProtocolError("KvReady needs one checksum for each layer")
        if blocks > 1 and blocks * self.cell_bytes > SHM_RUN_BYTES:
            raise ProtocolError(f"KvReady announces over {SHM_RUN_BYTES} bytes of one layer at a time")
        if len(self.copies) + len(ready.checksums) > 2 * self.total_bytes // self.cell_bytes:
            raise ProtocolError("KvReady repeats cells more often than they were asked for")
        for layer, checksum in enumerate(ready.checksums, ready.layer):
            run = Run(layer, ready.block, ready.block + blocks)
            self.copies.append(Copy(run, ready.source_blocks, checksum))

    def take_done(self, done: KvDone, now_s: float) -> None:
        """Note that all was sent. Raises ProtocolError for a time that cannot have been."""
        self.heard = True
        if not 0 <= done.waited_us <= MAX_WAITED_S * 1e6:
            raise ProtocolError(f"KvDone says that its tokens waited {done.waited_us} us before it was sent")
        if self.done is None:
            self._leave_out_spare(len(done.token_ids))
            self.done = done
            self._done_s = self._progress_s = self._asked_s = now_s

    def _leave_out_spare(self, num_tokens: int) -> None:
        """Do not wait for blocks behind those that `num_tokens` more tokens fill. Raises ProtocolError for
        more tokens than were granted room."""
        if self._filled_tokens is None:
            return
        end = -(-(self._filled_tokens + num_tokens) // HASH_BLOCK_TOKENS)
        if end > self.blocks.end:
            raise ProtocolError(f"KvDone brings {num_tokens} tokens, more than was room for")
        for layer in range(self._cells.num_layers):
            spare = self._cells.clip(Run(layer, end, self._cells.end))
            if spare.count > 0:
                for run in tuple(self._cells.runs(MISSING, spare)):
                    self._cells.set(run, VERIFIED)
                    self._missing -= run.count

    def abort(self, reason: str, now_s: float) -> bool:
        """Stop. False: no grant went out, so that nobody can write here and the blocks are free at once."""
        granted = self.phase is not IncomingPhase.WAITING
        self.phase = IncomingPhase.ABORTING
        self.abort_reason = reason
        self.copies.clear()
        self._abort_s = self._asked_s = now_s
        return granted

    # ---- what it wants -----------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self.blocks.num_blocks

    @property
    def transport_name(self) -> str:
        return self.transport.name if self.transport else ""

    @property
    def phase_name(self) -> str:
        return str(self.phase)

    @property
    def aborting(self) -> bool:
        return self.phase is IncomingPhase.ABORTING

    @property
    def complete(self) -> bool:
        """Everything is here, or nothing of it is needed because the request is already over."""
        return self.done is not None and (self._missing == 0 or self.done.finish != "")

    @property
    def sampled_s(self) -> float | None:
        return None if self.done is None else self._done_s - self.done.waited_us / 1e6

    def exposed_us(self, now_s: float) -> int:
        """The time from the sampling of the token to now: what the request had to wait for of the
        transfer."""
        assert self.done is not None
        return self.done.waited_us + round((now_s - self._done_s) * 1e6)

    def grow_window(self, window_bytes: int) -> None:
        self._news = self._news or window_bytes > self.window_bytes
        self.window_bytes = window_bytes

    def take_credit(self, now_s: float) -> int | None:
        """The `received_bytes` of a KvCredit that is due."""
        landed = self._seen_bytes - self._credited_bytes
        if self.phase is not IncomingPhase.RECEIVING or (landed <= 0 and not self._news):
            return None
        few = landed < min(ACK_BYTES, self.window_bytes // 2)
        if few and not self._news and now_s - self._credited_s < ACK_DELAY_S:
            return None
        self._news = False
        self._credited_bytes = self._seen_bytes
        self._credited_s = now_s
        return self._seen_bytes

    def take_missing(self, now_s: float) -> tuple[int, ...]:
        """The cells of a KvMissing that is due: all was sent, yet nothing came for a while."""
        waiting = self.phase is IncomingPhase.RECEIVING and self.done is not None and self._missing > 0
        quiet_s = now_s - max(self._progress_s, self._asked_s)
        if not waiting or self.copies or quiet_s < NO_PROGRESS_S or self._asked >= MAX_REQUESTS_AGAIN:
            return ()
        self._asked += 1
        self._asked_s = now_s
        return self._cells.indices(MISSING, MAX_MISSING_CELLS)

    def ask_again(self, now_s: float) -> bool:
        """Return whether KvGrant (nothing was heard yet) or KvAbort should be repeated."""
        unheard = self.phase is IncomingPhase.RECEIVING and not self.heard
        waiting = unheard or self.phase is IncomingPhase.ABORTING
        if not waiting or now_s - self._asked_s < NO_PROGRESS_S:
            return False
        self._asked_s = now_s
        return True

    def failure(self, now_s: float) -> PenstockError | None:
        """Why the transfer cannot go on, if so; a passed deadline is the caller's to find."""
        if self.phase is not IncomingPhase.RECEIVING or self._asked < MAX_REQUESTS_AGAIN or self.copies:
            return None
        if now_s - max(self._progress_s, self._asked_s) < NO_PROGRESS_S:
            return None
        return Unavailable(
            f"{self._missing} KV cells did not come, though {self.peer_role} {self.peer} was asked "
            f"{MAX_REQUESTS_AGAIN} times",
            hop=self.peer_role,
        )

    def lease_over(self, now_s: float) -> bool:
        return self.phase is IncomingPhase.ABORTING and now_s - self._abort_s >= LEASE_S

    def late(self) -> DeadlineExpired:
        return DeadlineExpired(
            "the deadline passed before the KV was here; allow more time or send less work", hop="decode"
        )
