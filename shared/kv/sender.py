"""KvSender: the outgoing transfers of one process, for services that compute KV.

Everything but `run_transfers` is called from the event loop's thread and never blocks. The callbacks are
called from there too, must not raise, and may call back into the sender.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from shared.bus import Delivery, subjects
from shared.bus.bulk import BulkConnection
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, InvalidRequest, PenstockError, ProtocolError, Unavailable
from shared.kv import metrics
from shared.kv.callbacks import OnFailed, OnReleased
from shared.kv.chunk import MAX_EPOCH
from shared.kv.control_sender import ControlBus, ControlSender
from shared.kv.expiring import Expiring
from shared.kv.limits import (
    LEASE_S,
    MAX_EARLY,
    MAX_TOMBSTONES,
    MAX_TRANSFER_BLOCKS,
    TICK_S,
    TOMBSTONE_S,
)
from shared.kv.outgoing import OutgoingPhase, OutgoingTransfer
from shared.kv.pool_memory import Pool, PoolMemory
from shared.kv.send_loop import SendLoop
from shared.kv.shared_pool import NOT_SHARED, SharedPool
from shared.kv.transfer_key import TransferKey
from shared.messages import (
    Envelope,
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
from shared.telemetry.metrics import STALE_MESSAGES

_CHUNK_SUBJECT = re.compile(r"penstock\.kv\.([a-z0-9-]{1,63})\.[0-9]{1,20}")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Early:
    """A message that overtook its request: the grant, or (None) the receiver's abort."""

    grant: KvGrant | None


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
        self._early: Expiring[TransferKey, _Early] = Expiring(MAX_EARLY, LEASE_S)
        self._ended: Expiring[TransferKey, str] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)  # the decode instance
        self._send_loop = SendLoop(bulk, self._memory, self._transfers, self, clock)

    # ---- what the service says -----------------------------------------------------------------

    def offer_transfer(
        self,
        request_id: str,
        epoch: int,
        origin: str,
        decode: str,
        block_ids: Sequence[int],
        deadline: Deadline,
    ) -> None:
        """Have KV for `decode`, in pool blocks `block_ids` (request block i is block_ids[i], from 0).

        The blocks belong to the transfer until `on_released`. Raises InvalidRequest.
        """
        key = (request_id, epoch)
        if key in self._transfers:
            raise InvalidRequest(f"request {request_id} is already offered under epoch {epoch}")
        if not 0 <= epoch <= MAX_EPOCH or len(block_ids) > MAX_TRANSFER_BLOCKS:
            raise InvalidRequest(
                f"epoch {epoch} with {len(block_ids)} blocks is beyond the limits of a transfer"
            )
        self._memory.check_blocks(block_ids)
        outgoing = OutgoingTransfer(
            request_id, epoch, origin, decode, block_ids, deadline, self._memory.num_layers, self._now()
        )
        self._transfers[key] = outgoing
        early = self._early.pop(key)
        if early is None:
            return
        if early.grant is None:
            self.fail_transfer(
                outgoing, Unavailable("the decode worker gave the request up", hop="decode"), tell=False
            )
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
        """What was sampled after the prompt; KvDone follows when all cells are sent."""
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
        """That decode worker is gone, and with it whatever it would acknowledge."""
        for outgoing in tuple(self._transfers.values()):
            if outgoing.decode == decode:
                self.fail_transfer(
                    outgoing, Unavailable(f"decode worker {decode} is gone", hop="decode"), tell=False
                )

    def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(outgoing.key[0], "transfer", len(outgoing.block_ids), str(outgoing.phase))
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
                    self._handle_unknown(key, message, envelope)
                else:
                    self._handle_known(outgoing, message)
            case _:
                return False
        return True

    def _handle_unknown(self, key: TransferKey, message: Message, envelope: Envelope) -> None:
        now_s = self._now()
        ended_at = self._ended.get(key)
        if isinstance(message, KvGrant) and ended_at is None:
            known = self._early.get(key)
            if known is None or known.grant is not None:
                self._early.put(key, _Early(message), now_s)
        elif isinstance(message, KvAbort):
            early = self._early.get(key)
            decode = ended_at or (_decode_of(early.grant) if early and early.grant else "")
            self._early.put(key, _Early(None), now_s)
            if decode:
                self._control_sender.publish(
                    subjects.inbox("decode", decode), KvAbortAck(message.transfer), envelope
                )
        elif isinstance(message, KvGrant) and ended_at:
            # It ended here before the grant came: whoever waits for it must not wait for ever.
            gone = KvAbort(message.transfer, "the prefill worker holds nothing for this transfer")
            self._control_sender.publish(subjects.inbox("decode", ended_at), gone, envelope)
        elif not isinstance(message, KvAbortAck):
            STALE_MESSAGES.inc()

    def _handle_known(self, outgoing: OutgoingTransfer, message: Message) -> None:
        if isinstance(message, KvGrant):
            self._grant(outgoing, message)
            return
        assert isinstance(message, KvCredit | KvMissing | KvReceived | KvAbort | KvAbortAck)
        if outgoing.grant is None or outgoing.grant.transfer != message.transfer:
            STALE_MESSAGES.inc()
            return
        match message:
            case KvCredit():
                self._take_credit(outgoing, message)
            case KvMissing():
                metrics.CELLS_AGAIN.labels("missing").inc(len(message.cells))
                outgoing.send_again(message.cells)
                self._send_loop.wake()
            case KvReceived():
                metrics.TRANSFERS.labels(outgoing.grant.transport, "sent").inc()
                self._release(outgoing)
            case KvAbortAck() if outgoing.phase is OutgoingPhase.ABORTING:
                self._release(outgoing)
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
        if _decode_of(grant) != outgoing.decode:
            STALE_MESSAGES.inc()
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
            raise ProtocolError("prefill and decode have different KV layouts; give them the same model")
        transports = ("nats",) if self._shared is None else ("nats", "shm")
        if grant.transport not in transports:
            raise ProtocolError(f"the transport {grant.transport[:16]!r} was granted; here are {transports}")

    # ---- ends ----------------------------------------------------------------------------------

    def settle_transfer(self, outgoing: OutgoingTransfer) -> None:
        """Look at what became possible."""
        if outgoing.take_done(self._now()):
            self._tell_done(outgoing)
        self._send_loop.wake()

    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError, *, tell: bool = True) -> None:
        """End with an error; without `tell` nobody there needs an abort, so the blocks are free at once."""
        metrics.TRANSFERS.labels(outgoing.grant.transport if outgoing.grant else "", error.code).inc()
        already = outgoing.phase is OutgoingPhase.ABORTING
        if not tell:
            self._transfers.pop(outgoing.key, None)
            self._ended.put(outgoing.key, outgoing.decode, self._now())
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
            self._tell_abort(outgoing)
        else:
            self._release(outgoing)

    def _release(self, outgoing: OutgoingTransfer) -> None:
        del self._transfers[outgoing.key]
        self._ended.put(outgoing.key, outgoing.decode, self._now())
        self._on_released(outgoing.key)

    # ---- messages ------------------------------------------------------------------------------

    def tell_receiver(self, outgoing: OutgoingTransfer, message: Message) -> None:
        envelope = self._bus.envelope(*outgoing.key, outgoing.deadline, outgoing.origin)
        self._control_sender.publish(subjects.inbox("decode", outgoing.decode), message, envelope)

    def _tell_done(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        tokens = outgoing.token_ids or ()
        waited_us = outgoing.waited_us(self._now())
        self.tell_receiver(outgoing, KvDone(outgoing.grant.transfer, tokens, outgoing.finish, waited_us))

    def _tell_abort(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        self.tell_receiver(outgoing, KvAbort(outgoing.grant.transfer, outgoing.abort_reason))

    # ---- work ----------------------------------------------------------------------------------

    async def run_transfers(self) -> None:
        """Send until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._control_sender.run())
            tasks.create_task(self._tick_for_ever())
            tasks.create_task(self._send_loop.run())

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick()

    def _tick(self) -> None:
        now_s = self._now()
        self._early.forget(now_s)
        self._ended.forget(now_s)
        for outgoing in tuple(self._transfers.values()):
            if outgoing.lease_over(now_s):
                self._release(outgoing)
                continue
            if outgoing.phase is not OutgoingPhase.ABORTING:
                error = outgoing.failure(now_s)
                if error is None and outgoing.deadline.expired(self._clock):
                    error = DeadlineExpired(
                        "the deadline passed before the KV was sent; allow more time or send less work",
                        hop="prefill",
                    )
                if error is not None:
                    self.fail_transfer(outgoing, error)
                    continue
            if outgoing.go_back(now_s):
                metrics.CELLS_AGAIN.labels("unacknowledged").inc()
                self._send_loop.wake()
            if outgoing.ask_again(now_s):
                tell = self._tell_abort if outgoing.phase is OutgoingPhase.ABORTING else self._tell_done
                tell(outgoing)

    def _now(self) -> float:
        return self._clock.monotonic_s()


def _decode_of(grant: KvGrant) -> str:
    """The instance that the grant's subject belongs to; "" when it is no subject for chunks."""
    found = _CHUNK_SUBJECT.fullmatch(grant.subject)
    return found.group(1) if found else ""
