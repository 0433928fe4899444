"""KvSender: the outgoing transfers of one process, for services that compute KV.

Everything but `run_transfers` is called from the event loop's thread and never blocks. The callbacks are
called from there too, must not raise, and may call back into the sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shared.bus import Delivery, subjects
from shared.bus.bulk import BulkConnection
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import InvalidRequest, PenstockError, ProtocolError, Unavailable
from shared.kv.chunk import MAX_EPOCH
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.memory.pool_memory import Pool, PoolMemory
from shared.kv.memory.shared_pool import NOT_SHARED, SharedPool
from shared.kv.request_blocks import RequestBlocks
from shared.kv.sending.outgoing import OutgoingPhase, OutgoingTransfer
from shared.kv.sending.outgoing_timer import OutgoingTimer
from shared.kv.sending.send_loop import SendLoop
from shared.kv.sending.unknown_transfers import ReceiverMessage, UnknownTransfers, decode_of
from shared.kv.transfer_key import OnFailed, OnReleased, TransferKey
from shared.messages import (
    Held,
    KvAbort,
    KvAbortAck,
    KvCredit,
    KvDone,
    KvGrant,
    KvMissing,
    KvProbe,
    KvReceived,
    Message,
)
from shared.telemetry import metrics


class KvSender:
    """`on_released(key)`, once per `offer_transfer`: the blocks may be reused. `on_failed(key, error)`, at
    most once and before it: the KV did not get there (not called for `abort_transfer`, whose caller knows).
    """

    def __init__(
        self,
        bus: ControlBus,
        bulk: BulkConnection,
        pool: Pool,
        shared: SharedPool | None,
        *,
        on_released: OnReleased,
        on_failed: OnFailed,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._bus = bus
        self._memory = PoolMemory.of(pool)
        self._layout = pool.layout.fingerprint()
        self._shared = shared
        self._on_released = on_released
        self._on_failed = on_failed
        self._clock = clock
        self._control_sender = ControlSender(bus)
        self._transfers: dict[TransferKey, OutgoingTransfer] = {}
        self._unknown = UnknownTransfers(self._control_sender)
        self._send_loop = SendLoop(bulk, self._memory, self._transfers, self, clock)
        self._timer = OutgoingTimer(self._transfers, self._unknown, self._send_loop.wake, self, clock)

    # ---- what the service says -----------------------------------------------------------------

    def offer_transfer(
        self,
        request_id: str,
        epoch: int,
        origin: str,
        decode: str,
        tables: Sequence[Sequence[int]],
        first_blocks: Sequence[int],
        deadline: Deadline,
    ) -> None:
        """Have KV for `decode`: request block i of group g of the layers is pool block tables[g][i]; what is
        before first_blocks[g] is not to be had.

        The blocks belong to the transfer until `on_released`. Raises InvalidRequest.
        """
        key = (request_id, epoch)
        if key in self._transfers:
            raise InvalidRequest(f"request {request_id} is already offered under epoch {epoch}")
        if not 0 <= epoch <= MAX_EPOCH:
            raise InvalidRequest(f"epoch {epoch} is beyond the limits of a transfer")
        blocks = RequestBlocks.of(tables, first_blocks, self._memory.groups)
        self._memory.check_blocks(blocks.moving)
        outgoing = OutgoingTransfer(request_id, epoch, origin, decode, blocks, deadline, self._now())
        self._transfers[key] = outgoing
        self._timer.wake()
        early = self._unknown.take_early(key, decode)
        if early is None:
            return
        if early.grant is None:
            given_up = Unavailable("the decode worker gave the request up", hop="decode")
            self.fail_transfer(outgoing, given_up, tell=False)
        else:
            self._grant(outgoing, early.grant)

    def layer_ready(self, key: TransferKey, layer: int, first_block: int, end_block: int) -> None:
        """Request blocks [first_block, end_block) of `layer` will not change any more.

        The last, partly filled block is ready when the whole prompt is computed. Unknown keys are
        ignored: the transfer may have ended meanwhile. Raises InvalidRequest outside of the request.
        """
        outgoing = self._transfers.get(key)
        if outgoing is not None:
            outgoing.layer_ready(layer, first_block, end_block)
            self._send_loop.wake()

    def finish_transfer(self, key: TransferKey, token_ids: Sequence[int], finish: str) -> None:
        """Finish with what was sampled after the prompt; KvDone follows when all cells are sent."""
        outgoing = self._transfers.get(key)
        if outgoing is not None:
            outgoing.set_tokens(token_ids, finish, self._now())
            self.settle_transfer(outgoing)

    def abort_transfer(self, key: TransferKey, reason: str) -> None:
        """Give up; `on_released` follows at once or when the receiver has acknowledged."""
        outgoing = self._transfers.get(key)
        if outgoing is not None and outgoing.phase is not OutgoingPhase.ABORTING:
            self._abort(outgoing, reason)

    def peer_lost(self, decode: str) -> None:
        """Handle the loss of a decode worker, and with it of whatever it would acknowledge."""
        for outgoing in tuple(self._transfers.values()):
            if outgoing.decode == decode:
                gone = Unavailable(f"decode worker {decode} is gone", hop="decode")
                self.fail_transfer(outgoing, gone, tell=False)

    def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(outgoing.key[0], "transfer", outgoing.num_blocks, str(outgoing.phase))
            for outgoing in self._transfers.values()
        )

    # ---- what the receiver says ----------------------------------------------------------------

    def handle_message(self, delivery: Delivery) -> bool:
        """Take a KV message from the inbox; False when it is not one for a sender."""
        message, envelope = delivery.message, delivery.envelope
        match message:
            case KvProbe():
                same = self._shared is not None and message.layout == self._layout
                segment = self._shared.segment if self._shared is not None and same else NOT_SHARED
                self._control_sender.reply(envelope, segment)
            case KvGrant() | KvCredit() | KvMissing() | KvReceived() | KvAbort() | KvAbortAck():
                key = (envelope.request_id, envelope.epoch)
                outgoing = self._transfers.get(key)
                if outgoing is None:
                    self._unknown.handle_message(key, message, envelope, delivery.sender, self._now())
                elif delivery.sender not in ("", outgoing.decode):
                    metrics.DROPPED_MESSAGES.labels("foreign_kv").inc()
                else:
                    self._handle_known(outgoing, message)
            case _:
                return False
        return True

    def _handle_known(self, outgoing: OutgoingTransfer, message: ReceiverMessage) -> None:
        if isinstance(message, KvGrant):
            self._grant(outgoing, message)
            return
        if outgoing.grant is None or outgoing.grant.transfer != message.transfer:
            metrics.STALE_MESSAGES.inc()
            return
        match message:
            case KvCredit():
                self._take_credit(outgoing, message)
            case KvMissing():
                metrics.KV_CELLS_AGAIN.labels("missing").inc(len(message.cells))
                outgoing.send_again(message.cells)
                self._send_loop.wake()
            case KvReceived():
                metrics.KV_TRANSFERS.labels(outgoing.grant.transport, "sent").inc()
                self.release_transfer(outgoing)
            case KvAbortAck() if outgoing.phase is OutgoingPhase.ABORTING:
                self.release_transfer(outgoing)
            case KvAbort():
                self.tell_receiver(outgoing, KvAbortAck(message.transfer))
                why = Unavailable(f"the decode worker aborted: {message.reason[:200]}", hop="decode")
                self.fail_transfer(outgoing, why, tell=False)

    def _take_credit(self, outgoing: OutgoingTransfer, credit: KvCredit) -> None:
        try:
            outgoing.acknowledge(credit.received_bytes, credit.credit_bytes, self._now())
        except ProtocolError as error:
            self.fail_transfer(outgoing, error)
        self._send_loop.wake()

    def _grant(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
        if decode_of(grant) != outgoing.decode:
            metrics.STALE_MESSAGES.inc()
            return
        try:
            self._check_grant(grant)
            outgoing.take_grant(grant, self._now())
        except ProtocolError as error:
            outgoing.refuse_grant(grant)
            self.fail_transfer(outgoing, error)
            return
        self.settle_transfer(outgoing)

    def _check_grant(self, grant: KvGrant) -> None:
        if grant.layout != self._layout:
            raise ProtocolError(
                "prefill and decode have different KV layouts; give them the same model and the same "
                "settings under [model], with max_model_len where the rope depends on the longest sequence"
            )
        transports = ("nats",) if self._shared is None else ("nats", "shm")
        if grant.transport not in transports:
            raise ProtocolError(f"the transport {grant.transport[:16]!r} was granted; here are {transports}")

    # ---- ends ----------------------------------------------------------------------------------

    def settle_transfer(self, outgoing: OutgoingTransfer) -> None:
        """Look at what became possible."""
        if outgoing.take_done(self._now()):
            self.tell_done(outgoing)
        self._send_loop.wake()

    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError, *, tell: bool = True) -> None:
        """End with an error; without `tell` nobody there needs an abort, so the blocks are free at once."""
        metrics.KV_TRANSFERS.labels(outgoing.grant.transport if outgoing.grant else "", error.code).inc()
        already = outgoing.phase is OutgoingPhase.ABORTING
        if not tell:
            self._transfers.pop(outgoing.key, None)
            self._unknown.remember_ended(outgoing.key, outgoing.decode, self._now())
        if not already:
            self._on_failed(outgoing.key, error)
        if not tell:
            self._on_released(outgoing.key)
        elif not already:
            self._abort(outgoing, error.code)

    def _abort(self, outgoing: OutgoingTransfer, reason: str) -> None:
        if self._transfers.get(outgoing.key) is not outgoing:
            return  # on_failed has ended it already
        if outgoing.abort(reason, self._now()):
            self.tell_abort(outgoing)
        else:
            self.release_transfer(outgoing)

    def release_transfer(self, outgoing: OutgoingTransfer) -> None:
        del self._transfers[outgoing.key]
        self._unknown.remember_ended(outgoing.key, outgoing.decode, self._now())
        self._on_released(outgoing.key)

    # ---- messages ------------------------------------------------------------------------------

    def tell_receiver(self, outgoing: OutgoingTransfer, message: Message) -> None:
        envelope = self._bus.envelope(*outgoing.key, outgoing.deadline, outgoing.origin)
        self._control_sender.publish(subjects.inbox("decode", outgoing.decode), message, envelope)

    def tell_done(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        tokens = outgoing.token_ids or ()
        waited_us = outgoing.waited_us(self._now())
        self.tell_receiver(outgoing, KvDone(outgoing.grant.transfer, tokens, outgoing.finish, waited_us))

    def tell_abort(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        self.tell_receiver(outgoing, KvAbort(outgoing.grant.transfer, outgoing.abort_reason))

    # ---- work ----------------------------------------------------------------------------------

    async def run_transfers(self) -> None:
        """Send until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._control_sender.run())
            tasks.create_task(self._timer.run())
            tasks.create_task(self._send_loop.run())

    def _now(self) -> float:
        return self._clock.monotonic_s()
