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
from shared.errors import InvalidRequest, ProtocolError, Unavailable
from shared.kv.chunk import MAX_EPOCH
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.memory.pool_memory import Pool, PoolMemory
from shared.kv.memory.shared_pool import NOT_SHARED, SharedPool
from shared.kv.request_blocks import RequestBlocks
from shared.kv.sending.kv_transport import KvTransport, NatsTransport, ShmTransport
from shared.kv.sending.outgoing import OutgoingTransfer
from shared.kv.sending.send_loop import SendLoop
from shared.kv.sending.unknown_transfers import ReceiverMessage, UnknownTransfers, decode_of
from shared.kv.transfer_key import OnFailed, OnReleased, OnSent, TransferKey
from shared.kv.transfer_side import TransferSide
from shared.kv.transfer_timer import TransferTimer
from shared.kv.transports import NATS, SHM
from shared.messages import (
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


class KvSender(TransferSide[TransferKey, OutgoingTransfer]):
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
        on_sent: OnSent | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`on_sent`: what transfers that grow are for."""
        super().__init__(on_failed, on_released, clock)
        self._on_sent = on_sent
        self._bus = bus
        self._memory = PoolMemory.of(pool)
        self._layout = pool.layout.fingerprint()
        self._shared = shared
        self._control_sender = ControlSender(bus)
        self._unknown = UnknownTransfers(self._control_sender)
        self._transports: dict[str, KvTransport] = {NATS.name: NatsTransport(bulk, self._memory, clock)}
        if shared is not None:
            self._transports[SHM.name] = ShmTransport(self._memory, self.send_control, clock)
        self._send_loop = SendLoop(self._transports, self._memory.cell_bytes, self._transfers, self)
        self._timer = TransferTimer(self._transfers, self._unknown.forget_expired, self, clock)

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
        *,
        grows: bool = False,
        receiver_role: str = "decode",
    ) -> None:
        """Have KV for `decode`: request block i of group g of the layers is pool block tables[g][i]; what is
        before first_blocks[g] is not to be had. With `grows` the request goes on here meanwhile, and all
        of these blocks are final: `extend_transfer` says what there is more of, each time when `on_sent` has
        said that all is sent. A prefill worker may receive as well, by its `receiver_role`.

        The blocks belong to the transfer until `on_released`. Raises InvalidRequest.
        """
        key = (request_id, epoch)
        if key in self._transfers:
            raise InvalidRequest(f"request {request_id} is already offered under epoch {epoch}")
        if not 0 <= epoch <= MAX_EPOCH:
            raise InvalidRequest(f"epoch {epoch} is beyond the limits of a transfer")
        blocks = RequestBlocks.of(tables, first_blocks, self._memory.groups)
        self._memory.check_blocks(blocks.moving)
        outgoing = OutgoingTransfer(
            request_id,
            epoch,
            origin,
            decode,
            blocks,
            deadline,
            self._now(),
            grows=grows,
            peer_role=receiver_role,
        )
        self._transfers[key] = outgoing
        self._timer.wake()
        if grows:
            for layer in range(len(blocks.group_of)):
                outgoing.layer_ready(layer, 0, blocks.end)
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

    def extend_transfer(self, key: TransferKey, tables: Sequence[Sequence[int]]) -> None:
        """There are more blocks of a request that goes on: all up to the end of `tables` are final by now.

        Raises InvalidRequest as `offer_transfer` does, and where nothing is granted yet.
        """
        outgoing = self._transfers.get(key)
        if outgoing is None or outgoing.aborting:
            return
        begin = outgoing.blocks.end
        blocks = RequestBlocks.of(tables, outgoing.blocks.first_blocks, self._memory.groups)
        self._memory.check_blocks(blocks.moving)
        outgoing.grow(tables)
        for layer in range(len(blocks.group_of)):
            outgoing.layer_ready(layer, begin, blocks.end)
        self.finish_if_ready(outgoing)

    def finish_transfer(
        self, key: TransferKey, token_ids: Sequence[int], finish: str, sampled_s: float | None = None
    ) -> None:
        """Finish with what was sampled after the prompt, now or at `sampled_s`; KvDone follows when all
        cells are sent."""
        outgoing = self._transfers.get(key)
        if outgoing is not None:
            outgoing.set_tokens(token_ids, finish, self._now() if sampled_s is None else sampled_s)
            self.finish_if_ready(outgoing)

    def abort_transfer(self, key: TransferKey, reason: str) -> None:
        """Give up; `on_released` follows at once or when the receiver has acknowledged."""
        outgoing = self._transfers.get(key)
        if outgoing is not None and not outgoing.aborting:
            self._abort(outgoing, reason)

    def peer_lost(self, decode: str) -> None:
        """Handle the loss of a receiver, and with it of whatever it would acknowledge."""
        self._fail_those_of(decode, Unavailable(f"worker {decode} is gone", hop="decode"))

    def is_between(self, key: TransferKey, peer: str) -> bool:
        """Whether a transfer of that name is, or was lately, sent to `peer` ("": to somebody)."""
        outgoing = self._transfers.get(key)
        receiver = self._unknown.ended_at(key) if outgoing is None else outgoing.peer
        return receiver is not None and peer in ("", receiver)

    def forget_ended(self, key: TransferKey) -> None:
        """Handle a request that has come back: what is heard of that name is of its next transfers."""
        self._unknown.forget_ended(key)

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
                elif delivery.sender not in ("", outgoing.peer):
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
                metrics.KV_TRANSFERS.labels(outgoing.transport_name, "sent").inc()
                self.release_transfer(outgoing)
            case KvAbortAck() if outgoing.aborting:
                self.release_transfer(outgoing)
            case KvAbort():
                self.send_control(outgoing, KvAbortAck(message.transfer))
                role = outgoing.peer_role
                why = Unavailable(f"the {role} worker aborted: {message.reason[:200]}", hop=role)
                self.fail_transfer(outgoing, why, tell=False)

    def _take_credit(self, outgoing: OutgoingTransfer, credit: KvCredit) -> None:
        try:
            outgoing.acknowledge(credit.received_bytes, credit.credit_bytes, self._now())
        except ProtocolError as error:
            self.fail_transfer(outgoing, error)
        self._send_loop.wake()

    def _grant(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
        if decode_of(grant) != outgoing.peer:
            metrics.STALE_MESSAGES.inc()
            return
        try:
            self._check_grant(grant)
            outgoing.take_grant(grant, self._now())
        except ProtocolError as error:
            outgoing.refuse_grant(grant)
            self.fail_transfer(outgoing, error)
            return
        self.finish_if_ready(outgoing)

    def _check_grant(self, grant: KvGrant) -> None:
        if grant.layout != self._layout:
            raise ProtocolError(
                "prefill and decode have different KV layouts; give them the same model and the same "
                "settings under [model], with max_model_len where the rope depends on the longest sequence"
            )
        if grant.transport not in self._transports:
            here = ", ".join(self._transports)
            raise ProtocolError(f"the transport {grant.transport[:16]!r} was granted; here are: {here}")

    # ---- ends ----------------------------------------------------------------------------------

    def finish_if_ready(self, outgoing: OutgoingTransfer) -> None:
        """Look at what became possible."""
        if outgoing.take_done(self._now()):
            self._send_done(outgoing)
        elif outgoing.take_sent() and self._on_sent is not None:
            self._on_sent(outgoing.key)
        self._send_loop.wake()

    def remind_peer(self, outgoing: OutgoingTransfer, now_s: float) -> None:
        """Send again what was not acknowledged, and say again what was not answered."""
        if outgoing.go_back(now_s):
            metrics.KV_CELLS_AGAIN.labels("unacknowledged").inc()
            self._send_loop.wake()
        if outgoing.ask_again(now_s):
            if outgoing.aborting:
                self._send_abort(outgoing)
            else:
                self._send_done(outgoing)

    def _is_live(self, outgoing: OutgoingTransfer) -> bool:
        return self._transfers.get(outgoing.key) is outgoing

    def _forget(self, outgoing: OutgoingTransfer) -> None:
        self._transfers.pop(outgoing.key, None)
        self._unknown.remember_ended(outgoing.key, outgoing.peer_role, outgoing.peer, self._now())

    # ---- messages ------------------------------------------------------------------------------

    def send_control(self, outgoing: OutgoingTransfer, message: Message) -> None:
        envelope = self._bus.envelope(*outgoing.key, outgoing.deadline, outgoing.origin)
        self._control_sender.publish(subjects.inbox(outgoing.peer_role, outgoing.peer), message, envelope)

    def _send_done(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        tokens = outgoing.token_ids or ()
        waited_us = outgoing.waited_us(self._now())
        self.send_control(outgoing, KvDone(outgoing.grant.transfer, tokens, outgoing.finish, waited_us))

    def _send_abort(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        self.send_control(outgoing, KvAbort(outgoing.grant.transfer, outgoing.abort_reason))

    # ---- work ----------------------------------------------------------------------------------

    async def run_transfers(self) -> None:
        """Send until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._control_sender.run())
            tasks.create_task(self._timer.run())
            tasks.create_task(self._send_loop.run())
