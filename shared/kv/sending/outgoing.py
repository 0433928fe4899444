"""One transfer at its sender, as a pure state machine: no I/O, no clock of its own.

    offered ──grant──► sending ──all cells sent, tokens known──► done ──KvReceived──► (released)
       └───────────────────┴── abort or failure ──► aborting ──ack, lease──► (released)

Cells go NEW → READY (their bytes are final) → SENT, and back to READY when asked for again.
Credit is counted on the stream of bytes put on the wire, as TCP does: `sent` may run ahead of `acked`
by the granted window; when nothing is acknowledged for NO_PROGRESS_S, the stream goes back to `acked`
and repeats what followed (the receiver takes each cell once).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from shared.deadline import Deadline
from shared.errors import DeadlineExpired, InvalidRequest, PenstockError, ProtocolError, Unavailable
from shared.kv.cells import CellMap, Run
from shared.kv.limits import LEASE_S, MAX_TRANSFER_BLOCKS, NO_PROGRESS_S, PEER_SILENCE_S
from shared.kv.request_blocks import RequestBlocks
from shared.kv.transports import TRANSPORTS
from shared.messages import KvGrant
from shared.seams.buggify import BUGGIFY

NEW, READY, SENT = 0, 1, 2


class OutgoingPhase(enum.StrEnum):
    OFFERED = "offered"
    SENDING = "sending"
    DONE = "done"
    ABORTING = "aborting"


class OutgoingTransfer:
    """`blocks` is where they lie, and from which on they are to be had. Of a sequence that goes on meanwhile
    the transfer `grows`: more may be granted than there is, which comes or turns out not to be needed."""

    def __init__(
        self,
        request_id: str,
        epoch: int,
        origin: str,
        decode: str,
        blocks: RequestBlocks,
        deadline: Deadline,
        now_s: float,
        *,
        grows: bool = False,
        peer_role: str = "decode",
    ) -> None:
        self.key = (request_id, epoch)
        self.origin = origin
        self.peer = decode
        self.peer_role = peer_role
        self.blocks = blocks
        self._grows = grows
        self.deadline = deadline
        self.phase = OutgoingPhase.OFFERED
        self.grant: KvGrant | None = None
        self._counts_credit = False
        self.token_ids: tuple[int, ...] | None = None
        self.finish = ""
        self.abort_reason = ""
        self._finished_s = 0.0
        self._cells = blocks.cells()
        self._queue: deque[Run] = deque()
        self._unsent = 0  # granted cells that are not SENT
        self._sent_bytes = 0
        self._acked_bytes = 0
        self._window_bytes = 0
        self._on_wire: deque[tuple[int, Run]] = deque()  # (offset after it, run)
        self._progress_s = now_s
        self._asked_s = now_s  # KvDone or KvAbort was told
        self._repeated_s = now_s  # the stream went back
        self._abort_s = 0.0
        self._repeating = False  # went back, and nothing was acknowledged since
        self._told_sent = False  # all that is ready was sent, and its owner knows

    # ---- what happens to it ------------------------------------------------------------------

    def take_grant(self, grant: KvGrant, now_s: float) -> None:
        """Let cells go, by a transport that is here. A repeated grant changes nothing.

        Raises ProtocolError for one that does not fit.
        """
        if self.phase is not OutgoingPhase.OFFERED:
            if self.grant is None or self.grant.transfer != grant.transfer:
                raise ProtocolError("a second transfer of the same request and epoch was granted")
            return
        wanted = zip(self.blocks.first_blocks, grant.first_blocks, strict=False)
        if (
            len(grant.first_blocks) != len(self.blocks.first_blocks)
            or not all(own <= first <= grant.end_block for own, first in wanted)
            or (grant.end_block > self.blocks.end and not self._grows)
            or grant.end_block > MAX_TRANSFER_BLOCKS
        ):
            raise ProtocolError(
                f"blocks {grant.first_blocks} to {grant.end_block} are granted, the request has "
                f"{self.blocks.first_blocks} to {self.blocks.end}"
            )
        granted = CellMap([grant.first_blocks[group] for group in self.blocks.group_of], grant.end_block)
        counts_credit = TRANSPORTS[grant.transport].needs_credit
        if counts_credit and granted.size and grant.credit_bytes <= 0:
            raise ProtocolError("a grant without credit can never be used")
        self.grant = grant
        self._counts_credit = counts_credit
        self._window_bytes = grant.credit_bytes
        self.phase = OutgoingPhase.SENDING
        self._progress_s = self._asked_s = now_s
        computed, self._cells = self._cells, granted
        self._unsent = self._cells.size
        for run in computed.all_runs(READY):
            self._make_ready(run)

    def refuse_grant(self, grant: KvGrant) -> None:
        """Take note of a grant that cannot be used, so that its receiver can be told."""
        if self.phase is OutgoingPhase.OFFERED:
            self.grant = grant
            self.phase = OutgoingPhase.SENDING

    def layer_ready(self, layer: int, first: int, end: int) -> None:
        """The bytes of request blocks [first, end) in `layer` are final. Repeating it changes nothing, nor do
        blocks that are not to be had."""
        run = Run(layer, first, end)
        if not (0 <= layer < self._cells.num_layers and 0 <= first <= end <= self.blocks.end):
            raise InvalidRequest(f"layer {layer}, blocks [{first}, {end}) are outside of the request")
        if self.phase in (OutgoingPhase.OFFERED, OutgoingPhase.SENDING):
            self._make_ready(run)

    def _make_ready(self, run: Run) -> None:
        inside = self._cells.clip(run)
        if inside.count <= 0:
            return
        for fresh in tuple(self._cells.runs(NEW, inside)):
            self._cells.set(fresh, READY)
            if self.grant is not None:
                self._queue.append(fresh)

    def grow(self, tables: Sequence[Sequence[int]]) -> None:
        """There are more blocks behind those that it had when it was granted. Raises InvalidRequest where it
        was not, or is not of the kind that grows."""
        blocks = replace(self.blocks, tables=tuple(map(tuple, tables)))
        if not self._grows or self.grant is None or blocks.end < self.blocks.end:
            raise InvalidRequest(
                f"a transfer of {self.blocks.end} blocks cannot become one of {blocks.end} now"
            )
        self.blocks = blocks
        self._told_sent = False

    def set_tokens(self, token_ids: Sequence[int], finish: str, now_s: float) -> None:
        """Set what was sampled after the prompt, at `now_s`. With `finish` nothing is left to decode: no
        cell is needed. What was granted behind the last block of one that grows is not needed either."""
        self.token_ids = tuple(token_ids)
        self.finish = finish
        self._finished_s = now_s
        if self._grows and self.grant is not None:
            for layer in range(self._cells.num_layers):
                behind = self._cells.clip(Run(layer, self.blocks.end, self._cells.end))
                if behind.count > 0:
                    for run in tuple(self._cells.runs(NEW, behind)):
                        self._cells.set(run, SENT)
                        self._unsent -= run.count

    def acknowledge(self, received_bytes: int, window_bytes: int, now_s: float) -> None:
        """The receiver has seen the stream up to `received_bytes`.

        Raises ProtocolError when it cannot have.
        """
        if received_bytes > self._sent_bytes + self._window_bytes:
            raise ProtocolError("more bytes are acknowledged than were sent")
        self._window_bytes = max(self._window_bytes, window_bytes)
        if received_bytes <= self._acked_bytes:
            return
        self._acked_bytes = received_bytes
        # After going back, the first sending of a chunk may still be acknowledged.
        self._sent_bytes = max(self._sent_bytes, received_bytes)
        self._progress_s = now_s
        self._repeating = False
        while self._on_wire and self._on_wire[0][0] <= received_bytes:
            self._on_wire.popleft()

    def send_again(self, cells: Sequence[int]) -> None:
        """The receiver misses these cells. Those that were never sent come anyway, in their turn."""
        for cell in self._cells.runs_of(cells):
            for run in tuple(self._cells.runs(SENT, cell)):
                self._requeue(run)

    def _requeue(self, run: Run) -> None:
        self._cells.set(run, READY)
        self._unsent += run.count
        last = self._queue[-1] if self._queue else None
        if last is not None and last.layer == run.layer and last.end == run.first:
            self._queue[-1] = Run(run.layer, last.first, run.end)
        else:
            self._queue.append(run)

    def abort(self, reason: str, now_s: float) -> bool:
        """Stop. False: nobody was granted anything, so that the blocks are free at once."""
        self._queue.clear()
        if self.phase is OutgoingPhase.OFFERED:
            return False
        self.phase = OutgoingPhase.ABORTING
        self.abort_reason = reason
        self._abort_s = self._asked_s = now_s
        return True

    # ---- what it wants -----------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self.blocks.num_blocks

    @property
    def transport_name(self) -> str:
        return self.grant.transport if self.grant else ""

    @property
    def phase_name(self) -> str:
        return str(self.phase)

    @property
    def aborting(self) -> bool:
        return self.phase is OutgoingPhase.ABORTING

    def has_work(self, cell_bytes: int) -> bool:
        """Return whether `take_run` would give something."""
        return (
            bool(self._queue)
            and self.phase in (OutgoingPhase.SENDING, OutgoingPhase.DONE)
            and (self._room(cell_bytes) > 0)
        )

    def _room(self, cell_bytes: int) -> int:
        """Cells that credit allows."""
        if not self._counts_credit:
            return self._cells.end
        return (self._acked_bytes + self._window_bytes - self._sent_bytes) // cell_bytes

    def take_run(self, cell_bytes: int, limit: int, now_s: float) -> tuple[int, Run] | None:
        """The next cells to send, at most `limit`, and the stream offset they go out at."""
        if not self.has_work(cell_bytes):
            return None
        run = self._queue.popleft()
        count = min(run.count, limit, self._room(cell_bytes))
        if count < run.count:
            self._queue.appendleft(Run(run.layer, run.first + count, run.end))
            run = Run(run.layer, run.first, run.first + count)
        self._cells.set(run, SENT)
        self._unsent -= run.count
        offset = self._sent_bytes
        if self._counts_credit:
            if not self._on_wire:
                # Silence counts from the first unacknowledged byte, not from the last computed layer.
                self._progress_s = max(self._progress_s, now_s) if not self._repeating else self._progress_s
            self._sent_bytes += run.count * cell_bytes
            self._on_wire.append((self._sent_bytes, run))
        return offset, run

    def take_next_layer(self, run: Run) -> Run | None:
        """The same blocks of the following layer, if they come next: shm announces them together."""
        after = Run(run.layer + 1, run.first, run.end)
        if not self._queue or self._queue[0] != after:
            return None
        if self.blocks.group_of[after.layer] != self.blocks.group_of[run.layer]:
            return None
        self._queue.popleft()
        self._cells.set(after, SENT)
        self._unsent -= after.count
        return after

    def take_done(self, now_s: float) -> bool:
        """True once, when KvDone is due: everything is sent and the tokens are known."""
        due = (
            self.phase is OutgoingPhase.SENDING
            and self.token_ids is not None
            and (self._unsent == 0 or self.finish != "")
        )
        if due:
            self.phase = OutgoingPhase.DONE
            self._progress_s = self._asked_s = now_s
            if self.finish:
                self._queue.clear()
        return due

    def take_sent(self) -> bool:
        """True once each time when, of one that grows, all that is ready so far is sent."""
        due = (
            self._grows
            and not self._told_sent
            and self.phase is OutgoingPhase.SENDING
            and self.token_ids is None
            and not self._queue
        )
        self._told_sent = self._told_sent or due
        return due

    def waited_us(self, now_s: float) -> int:
        """The time for which the tokens have been known."""
        return max(0, round((now_s - self._finished_s) * 1e6))

    def go_back(self, now_s: float) -> bool:
        """Repeat what is on the wire when nothing was acknowledged for too long; whether it did."""
        silent_s = now_s - max(self._progress_s, self._repeated_s)
        if not self._on_wire or (silent_s < NO_PROGRESS_S and not BUGGIFY.takes("KV is sent again early")):
            return False
        self._repeated_s = now_s
        self._repeating = True
        lost, self._on_wire = self._on_wire, deque()
        self._sent_bytes = self._acked_bytes
        for _, sent in lost:
            for run in tuple(self._cells.runs(SENT, sent)):
                self._requeue(run)
        return True

    def ask_again(self, now_s: float) -> bool:
        """Return whether KvDone or KvAbort should be repeated for want of an answer."""
        waiting = self.phase in (OutgoingPhase.DONE, OutgoingPhase.ABORTING)
        if not waiting or now_s - self._asked_s < NO_PROGRESS_S:
            return False
        self._asked_s = now_s
        return True

    def failure(self, now_s: float) -> PenstockError | None:
        """Why the transfer cannot go on, if so; a passed deadline is the caller's to find."""
        waiting = self._on_wire or self.phase is OutgoingPhase.DONE
        if self.phase is not OutgoingPhase.ABORTING and waiting and now_s - self._progress_s > PEER_SILENCE_S:
            return Unavailable(
                f"{self.peer_role} {self.peer} acknowledged no KV for {PEER_SILENCE_S:g} s",
                hop=self.peer_role,
            )
        return None

    def lease_over(self, now_s: float) -> bool:
        return self.phase is OutgoingPhase.ABORTING and now_s - self._abort_s >= LEASE_S

    def late(self) -> DeadlineExpired:
        return DeadlineExpired(
            "the deadline passed before the KV was sent; allow more time or send less work", hop="prefill"
        )
