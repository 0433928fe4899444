"""KvReceiver: the incoming transfers of one process, for services that decode.

Everything but `start`, `run_transfers` and `close` is called from the event loop's thread and never blocks.
The callbacks are called from there too, must not raise, and may call back into the receiver.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from shared.bus import Delivery, subjects
from shared.bus.bulk import BulkConnection
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import (
    ChecksumMismatch,
    InvalidRequest,
    ProtocolError,
    StaleEpoch,
    Unavailable,
)
from shared.kv.cells import Run
from shared.kv.chunk import MAX_EPOCH
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.memory.mapped_pools import MappedPools, ProbeResult
from shared.kv.memory.pool_memory import Pool, PoolMemory
from shared.kv.receiving.chunk_writer import ChunkWriter
from shared.kv.receiving.copier import Copier
from shared.kv.receiving.ended_transfers import EndedTransfers, SenderMessage
from shared.kv.receiving.grants import Grants
from shared.kv.receiving.incoming import IncomingPhase, IncomingTransfer
from shared.kv.request_blocks import RequestBlocks
from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased, TransferKey
from shared.kv.transfer_side import TransferSide
from shared.kv.transfer_timer import TransferTimer
from shared.kv.transports import AUTO, NATS, SHM, TRANSPORT_CHOICES
from shared.messages import (
    KvAbort,
    KvAbortAck,
    KvDone,
    KvMissing,
    KvReady,
    KvReceived,
    Message,
)
from shared.telemetry import metrics


class KvReceiver(TransferSide[int, IncomingTransfer]):
    """`on_complete(key, token_ids, finish, exposed_us)`: all KV is in the pool and verified (or, with
    `finish`, not needed any more). `on_failed(key, error)`: it will not come. Either is called at most
    once per `expect_transfer`, and neither after `abort_transfer`. After a failure or an abort,
    `on_released(key)` says when the blocks may be reused.
    """

    def __init__(
        self,
        bus: ControlBus,
        bulk: BulkConnection,
        instance: str,
        incarnation: int,
        pool: Pool,
        transport: str = AUTO,
        *,
        on_complete: OnComplete,
        on_failed: OnFailed,
        on_released: OnReleased,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`transport`: "nats", "auto" (shm where possible) or "shm" (requests fail where it is not)."""
        if transport not in TRANSPORT_CHOICES:
            raise InvalidRequest(
                f"the KV transport is one of {', '.join(TRANSPORT_CHOICES)}, not {transport!r}"
            )
        super().__init__(on_failed, on_released, clock)
        self._bus = bus
        self._bulk = bulk
        self._memory = PoolMemory.of(pool)
        self._subject = subjects.kv(instance, incarnation)
        self._transport = transport
        self._on_complete = on_complete
        self._control_sender = ControlSender(bus)
        self._mapped_pools = MappedPools(bus, pool.layout, clock)
        self._chunk_writer = ChunkWriter(self._memory, self._by_transfer, self)
        self._numbers = itertools.count(1)
        self._requests: dict[str, IncomingTransfer] = {}
        self._grants = Grants(self._subject, pool.layout.fingerprint(), self.send_control, clock)
        self._copier = Copier(self._mapped_pools, self._memory, self._transfers, self)
        self._ended = EndedTransfers(bus, self._control_sender)
        self._timer = TransferTimer(self._transfers, self._ended.forget_expired, self, clock)

    # ---- what the service says -----------------------------------------------------------------

    async def start(self) -> None:
        """Listen for chunks."""
        await self._bulk.serve(self._subject, self._chunk_writer)

    def expect_transfer(
        self,
        request_id: str,
        epoch: int,
        origin: str,
        prefill: str,
        prefill_incarnation: int,
        tables: Sequence[Sequence[int]],
        first_blocks: Sequence[int],
        deadline: Deadline,
        *,
        sender_role: str = "prefill",
        filled_tokens: int | None = None,
    ) -> None:
        """Let `prefill` send the request's blocks: block i of group g of the layers goes to pool block
        tables[g][i], from first_blocks[g] on. Those before are here already or not wanted.

        A decode worker may send as well, over NATS alone, by its `sender_role`, while the request still goes
        on there: then KV of `filled_tokens` comes at least, and the tables have room for what comes more.

        An older epoch of the request ends with StaleEpoch. Raises InvalidRequest, StaleEpoch.
        """
        blocks = RequestBlocks.of(tables, first_blocks, self._memory.groups)
        moving = blocks.moving
        if not 0 <= epoch <= MAX_EPOCH or len(set(moving)) != len(moving):
            raise InvalidRequest(f"{len(moving)} blocks cannot be received under epoch {epoch}")
        self._memory.check_blocks(moving)
        earlier = self._requests.get(request_id)
        if earlier is not None:
            if earlier.key[1] >= epoch:
                raise StaleEpoch(f"request {request_id} is already received under epoch {earlier.key[1]}")
            self.send_control(earlier, KvAbort(earlier.transfer, "replaced"))
            replaced = StaleEpoch("the request was routed again under a new epoch")
            self.fail_transfer(earlier, replaced, tell=False)
        incoming = IncomingTransfer(
            request_id,
            epoch,
            next(self._numbers),
            origin=origin,
            prefill=prefill,
            incarnation=prefill_incarnation,
            blocks=blocks,
            deadline=deadline,
            cell_bytes=self._memory.cell_bytes,
            now_s=self._now(),
            peer_role=sender_role,
            filled_tokens=filled_tokens,
        )
        self._transfers[incoming.transfer] = incoming
        self._timer.wake()
        self._requests[request_id] = incoming
        if self._transport == NATS.name or sender_role == "decode" or not moving:
            self._grants.over_nats(incoming)
        else:
            self._copier.choose_transport(incoming)

    def abort_transfer(self, key: TransferKey, reason: str) -> None:
        """Give up; `on_released` follows, at once or when the sender has acknowledged.

        Unknown keys are ignored: the transfer may have ended meanwhile.
        """
        incoming = self._requests.get(key[0])
        if incoming is not None and incoming.key == key and not incoming.aborting:
            self._abort(incoming, reason)

    def is_known(self, key: TransferKey, transfer: int) -> bool:
        """Whether a transfer of that name and number is, or was lately, received here."""
        incoming = self._transfers.get(transfer)
        if incoming is not None:
            return incoming.key == key
        return self._ended.is_known(key, transfer)

    def sampled_s(self, key: TransferKey) -> float | None:
        """Return when the tokens after the prompt were drawn; None while that is not known."""
        incoming = self._requests.get(key[0])
        return incoming.sampled_s if incoming is not None and incoming.key == key else None

    def peer_lost(self, prefill: str) -> None:
        """Handle the loss of a prefill worker: it sends nothing any more, and what comes late lands
        nowhere."""
        self._fail_those_of(prefill, Unavailable(f"prefill worker {prefill} is gone", hop="prefill"))
        self._mapped_pools.forget(prefill)

    def check(self) -> None:
        """Raise InternalError where credit is neither free nor held by a transfer."""
        self._grants.credit.check()

    def close(self) -> None:
        """Write to the pool no more, whatever still comes, and let go of the mapped pools.

        No callback is called: the transfers end with their owner, and their senders have leases.
        """
        for incoming in tuple(self._transfers.values()):
            self._forget(incoming)
        self._mapped_pools.close()

    # ---- what the sender says ------------------------------------------------------------------

    def handle_message(self, delivery: Delivery) -> bool:
        """Take a KV message from the inbox; False when it is not one for a receiver."""
        message, envelope = delivery.message, delivery.envelope
        if not isinstance(message, SenderMessage):
            return False
        incoming = self._transfers.get(message.transfer)
        key = (envelope.request_id, envelope.epoch)
        if incoming is None or incoming.key != key:
            self._ended.handle_message(key, message)
            return True
        if delivery.sender not in ("", incoming.peer):
            metrics.DROPPED_MESSAGES.labels("foreign_kv").inc()
            return True
        match message:
            case KvReady():
                self._take_ready(incoming, message)
            case KvDone():
                self._take_done(incoming, message)
            case KvAbort():
                self.send_control(incoming, KvAbortAck(message.transfer))
                role = incoming.peer_role
                why = Unavailable(f"the {role} worker aborted: {message.reason[:200]}", hop=role)
                self.fail_transfer(incoming, why, tell=False)
            case KvAbortAck():
                if incoming.aborting:
                    self.release_transfer(incoming)
        return True

    def _take_ready(self, incoming: IncomingTransfer, ready: KvReady) -> None:
        if incoming.phase is not IncomingPhase.RECEIVING:
            return
        try:
            self._copier.take_ready(incoming, ready)
        except (ProtocolError, InvalidRequest) as error:
            self.fail_transfer(incoming, error)

    def _take_done(self, incoming: IncomingTransfer, done: KvDone) -> None:
        try:
            incoming.take_done(done, self._now())
        except ProtocolError as error:
            self.fail_transfer(incoming, error)
        else:
            self._complete_if_all_is_in(incoming)

    # ---- chunks and cells (ChunkWriterOwner, CopierOwner) --------------------------------------

    def choose_transport(self, incoming: IncomingTransfer, probed: ProbeResult) -> None:
        if probed.mapping is not None:
            self._grants.over_shm(incoming)
        elif self._transport == SHM.name:
            why = f"the shm transport is demanded and not possible here: {probed.why}"
            self.fail_transfer(incoming, Unavailable(why, hop="decode"))
        else:
            self._grants.over_nats(incoming)

    def _by_transfer(self, transfer: int) -> IncomingTransfer | None:
        return self._transfers.get(transfer)

    def cells_verified(self, incoming: IncomingTransfer, run: Run) -> None:
        incoming.verified(run, self._now())
        metrics.KV_TRANSFER_BYTES.labels(incoming.transport_name).inc(run.count * incoming.cell_bytes)
        self._complete_if_all_is_in(incoming)
        self._grants.send_credit(incoming)

    def cells_corrupt(self, incoming: IncomingTransfer, run: Run) -> None:
        metrics.KV_CHECKSUM_FAILURES.inc()
        try:
            cells = incoming.failed_checksum(run)
        except ChecksumMismatch as error:
            self.fail_transfer(incoming, error)
            return
        self.send_control(incoming, KvMissing(incoming.transfer, cells))
        self._grants.send_credit(incoming)

    def chunk_refused(self, incoming: IncomingTransfer, error: ProtocolError) -> None:
        """A header is believed with its body: one alone may have changed on its way, and name another
        transfer than its own. What it was of is asked for again."""
        if incoming.has_too_many_bad_chunks():
            self.fail_transfer(incoming, error)

    def chunk_unneeded(self, incoming: IncomingTransfer) -> None:
        self._grants.send_credit(incoming)

    # ---- messages ------------------------------------------------------------------------------

    def send_control(self, incoming: IncomingTransfer, message: Message) -> None:
        envelope = self._bus.envelope(*incoming.key, incoming.deadline, incoming.origin)
        self._control_sender.publish(subjects.inbox(incoming.peer_role, incoming.peer), message, envelope)

    # ---- ends ----------------------------------------------------------------------------------

    def _complete_if_all_is_in(self, incoming: IncomingTransfer) -> None:
        if incoming.phase is not IncomingPhase.RECEIVING or not incoming.complete:
            return
        done, now_s = incoming.done, self._now()
        assert done is not None
        exposed_us = incoming.exposed_us(now_s)
        metrics.KV_TRANSFERS.labels(incoming.transport_name, "received").inc()
        metrics.KV_TRANSFER_SECONDS.labels(incoming.transport_name).observe(now_s - incoming.started_s)
        metrics.KV_TRANSFER_EXPOSED_SECONDS.labels(incoming.transport_name).observe(exposed_us / 1e6)
        self.send_control(incoming, KvReceived(incoming.transfer))
        self._forget(incoming)
        self._on_complete(incoming.key, done.token_ids, done.finish, exposed_us)

    def remind_peer(self, incoming: IncomingTransfer, now_s: float) -> None:
        """Acknowledge what is late, ask for missing cells, and say again what was not answered."""
        self._grants.send_credit(incoming)
        missing = incoming.take_missing(now_s)
        if missing:
            metrics.KV_CELLS_AGAIN.labels("asked").inc(len(missing))
            self.send_control(incoming, KvMissing(incoming.transfer, missing))
        if incoming.ask_again(now_s):
            if incoming.aborting:
                self._send_abort(incoming)
            else:
                self._grants.resend_grant(incoming)

    def _send_abort(self, incoming: IncomingTransfer) -> None:
        self.send_control(incoming, KvAbort(incoming.transfer, incoming.abort_reason))

    def _is_live(self, incoming: IncomingTransfer) -> bool:
        return self._transfers.get(incoming.transfer) is incoming

    def _forget(self, incoming: IncomingTransfer) -> None:
        self._stop(incoming)
        incoming.phase = IncomingPhase.ENDED
        del self._transfers[incoming.transfer]
        if self._requests.get(incoming.key[0]) is incoming:
            del self._requests[incoming.key[0]]
        self._ended.remember_ended(incoming, self._now())

    def _stop(self, incoming: IncomingTransfer) -> None:
        """Stop writing: from here on no byte of this transfer can reach the pool."""
        if self._chunk_writer.current is incoming:
            self._bulk.discard_body(self._chunk_writer)
            self._chunk_writer.lost()
        incoming.copies.clear()
        self._grants.release(incoming)

    # ---- work ----------------------------------------------------------------------------------

    async def run_transfers(self) -> None:
        """Receive until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._control_sender.run())
            tasks.create_task(self._copier.run())
            tasks.create_task(self._timer.run())
