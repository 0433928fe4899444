"""KvSender: the KV egress of one process, for services that compute KV.

Everything but `run` is called from the event loop's thread and never blocks. The callbacks are called
from there too, must not raise, and may call back into the sender.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from shared.bus import Delivery, subjects
from shared.bus.bulk import BulkConnection
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import DeadlineExpired, InvalidRequest, PenstockError, ProtocolError, Unavailable
from shared.kv import metrics
from shared.kv.chunk import MAX_EPOCH
from shared.kv.egress import Egress, EgressPhase
from shared.kv.expiring import Expiring
from shared.kv.limits import (
    LEASE_S,
    MAX_EARLY,
    MAX_TOMBSTONES,
    MAX_TRANSFER_BLOCKS,
    TICK_S,
    TOMBSTONE_S,
)
from shared.kv.outbox import ControlBus, Outbox
from shared.kv.pool_memory import Pool, PoolMemory
from shared.kv.pump import Pump
from shared.kv.shared_pool import NOT_SHARED, SharedPool
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

Key = tuple[str, int]
"""request_id, epoch."""

_CHUNK_SUBJECT = re.compile(r"penstock\.kv\.([a-z0-9-]{1,63})\.[0-9]{1,20}")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Early:
    """A message that overtook its request: the grant, or (None) the receiver's abort."""

    grant: KvGrant | None


class KvSender:
    """`on_released(key)`, once per offer: the blocks may be reused. `on_failed(key, error)`, at most once and
    before it: the KV did not get there (not called for `abort`, whose caller knows).
    """

    def __init__(
        self,
        bus: ControlBus,
        bulk: BulkConnection,
        pool: Pool,
        shared: SharedPool | None,
        *,
        on_released: Callable[[Key], None],
        on_failed: Callable[[Key, PenstockError], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._bus = bus
        self._memory = PoolMemory.of(pool)
        self._layout = pool.layout.fingerprint()
        self._shared = shared
        self._on_released = on_released
        self._on_failed = on_failed
        self._clock = clock
        self._outbox = Outbox(bus)
        self._transfers: dict[Key, Egress] = {}
        self._early: Expiring[Key, _Early] = Expiring(MAX_EARLY, LEASE_S)
        self._ended: Expiring[Key, str] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)  # the decode instance
        self._pump = Pump(bulk, self._memory, self._transfers, self, clock)

    # ---- what the service says -----------------------------------------------------------------

    def offer(
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
        egress = Egress(
            request_id, epoch, origin, decode, block_ids, deadline, self._memory.num_layers, self._now()
        )
        self._transfers[key] = egress
        early = self._early.pop(key)
        if early is None:
            return
        if early.grant is None:
            self.fail(egress, Unavailable("the decode worker gave the request up", hop="decode"), tell=False)
        else:
            self._grant(egress, early.grant)

    def layer_ready(self, key: Key, layer: int, first_block: int, end_block: int) -> None:
        """Request blocks [first_block, end_block) of `layer` will not change any more.

        The last, partly filled block is ready when the whole prompt is computed. Unknown keys are
        ignored: the transfer may have ended meanwhile. Raises InvalidRequest outside of the request.
        """
        egress = self._transfers.get(key)
        if egress is not None:
            egress.layer_ready(layer, first_block, end_block)
            self._pump.wake()

    def finish(self, key: Key, token_ids: Sequence[int], finish: str) -> None:
        """What was sampled after the prompt; KvDone follows when all cells are sent."""
        egress = self._transfers.get(key)
        if egress is not None:
            egress.set_tokens(token_ids, finish, self._now())
            self.settle(egress)

    def abort(self, key: Key, reason: str) -> None:
        """Give up; `on_released` follows at once or when the receiver has acknowledged."""
        egress = self._transfers.get(key)
        if egress is not None and egress.phase is not EgressPhase.ABORTING:
            self._abort(egress, reason)

    def peer_lost(self, decode: str) -> None:
        """That decode worker is gone, and with it whatever it would acknowledge."""
        for egress in tuple(self._transfers.values()):
            if egress.decode == decode:
                self.fail(egress, Unavailable(f"decode worker {decode} is gone", hop="decode"), tell=False)

    def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(e.key[0], "transfer", len(e.block_ids), str(e.phase)) for e in self._transfers.values()
        )

    # ---- what the receiver says ----------------------------------------------------------------

    def handle(self, delivery: Delivery) -> bool:
        """Take a KV message from the inbox; False when it is not one for a sender."""
        message, envelope = delivery.message, delivery.envelope
        match message:
            case KvProbe():
                same = self._shared is not None and message.layout == self._layout
                segment = self._shared.segment if self._shared is not None and same else NOT_SHARED
                self._outbox.reply(envelope, segment)
            case KvGrant() | KvCredit() | KvMissing() | KvReceived() | KvAbort() | KvAbortAck():
                key = (envelope.request_id, envelope.epoch)
                egress = self._transfers.get(key)
                if egress is None:
                    self._handle_unknown(key, message, envelope)
                else:
                    self._handle_known(egress, message)
            case _:
                return False
        return True

    def _handle_unknown(self, key: Key, message: Message, envelope: Envelope) -> None:
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
                self._outbox.publish(subjects.inbox("decode", decode), KvAbortAck(message.transfer), envelope)
        elif isinstance(message, KvGrant) and ended_at:
            # It ended here before the grant came: whoever waits for it must not wait for ever.
            gone = KvAbort(message.transfer, "the prefill worker holds nothing for this transfer")
            self._outbox.publish(subjects.inbox("decode", ended_at), gone, envelope)
        elif not isinstance(message, KvAbortAck):
            STALE_MESSAGES.inc()

    def _handle_known(self, egress: Egress, message: Message) -> None:
        if isinstance(message, KvGrant):
            self._grant(egress, message)
            return
        assert isinstance(message, KvCredit | KvMissing | KvReceived | KvAbort | KvAbortAck)
        if egress.grant is None or egress.grant.transfer != message.transfer:
            STALE_MESSAGES.inc()
            return
        match message:
            case KvCredit():
                self._take_credit(egress, message)
            case KvMissing():
                metrics.CELLS_AGAIN.labels("missing").inc(len(message.cells))
                egress.send_again(message.cells)
                self._pump.wake()
            case KvReceived():
                metrics.TRANSFERS.labels(egress.grant.transport, "sent").inc()
                self._release(egress)
            case KvAbortAck() if egress.phase is EgressPhase.ABORTING:
                self._release(egress)
            case KvAbort():
                self.tell(egress, KvAbortAck(message.transfer))
                why = Unavailable(f"the decode worker aborted: {message.reason[:200]}", hop="decode")
                self.fail(egress, why, tell=False)

    def _take_credit(self, egress: Egress, credit: KvCredit) -> None:
        try:
            egress.acknowledge(credit.received_bytes, credit.credit_bytes, self._now())
        except ProtocolError as error:
            self.fail(egress, error)
        self._pump.wake()

    def _grant(self, egress: Egress, grant: KvGrant) -> None:
        if _decode_of(grant) != egress.decode:
            STALE_MESSAGES.inc()
            return
        try:
            self._check_grant(grant)
            egress.take_grant(grant, self._now())
        except ProtocolError as error:
            egress.refuse_grant(grant)
            self.fail(egress, error)
            return
        self.settle(egress)

    def _check_grant(self, grant: KvGrant) -> None:
        if grant.layout != self._layout:
            raise ProtocolError("prefill and decode have different KV layouts; give them the same model")
        transports = ("nats",) if self._shared is None else ("nats", "shm")
        if grant.transport not in transports:
            raise ProtocolError(f"the transport {grant.transport[:16]!r} was granted; here are {transports}")

    # ---- ends ----------------------------------------------------------------------------------

    def settle(self, egress: Egress) -> None:
        """Look at what became possible."""
        if egress.take_done(self._now()):
            self._tell_done(egress)
        self._pump.wake()

    def fail(self, egress: Egress, error: PenstockError, *, tell: bool = True) -> None:
        """End with an error; without `tell` nobody there needs an abort, so the blocks are free at once."""
        metrics.TRANSFERS.labels(egress.grant.transport if egress.grant else "", error.code).inc()
        already = egress.phase is EgressPhase.ABORTING
        if not tell:
            self._transfers.pop(egress.key, None)
            self._ended.put(egress.key, egress.decode, self._now())
        if not already:
            self._on_failed(egress.key, error)
        if not tell:
            self._on_released(egress.key)
        elif not already:
            self._abort(egress, error.code)

    def _abort(self, egress: Egress, reason: str) -> None:
        if self._transfers.get(egress.key) is not egress:
            return  # on_failed has ended it already
        if egress.abort(reason, self._now()):
            self._tell_abort(egress)
        else:
            self._release(egress)

    def _release(self, egress: Egress) -> None:
        del self._transfers[egress.key]
        self._ended.put(egress.key, egress.decode, self._now())
        self._on_released(egress.key)

    # ---- messages ------------------------------------------------------------------------------

    def tell(self, egress: Egress, message: Message) -> None:
        envelope = self._bus.envelope(*egress.key, egress.deadline, egress.origin)
        self._outbox.publish(subjects.inbox("decode", egress.decode), message, envelope)

    def _tell_done(self, egress: Egress) -> None:
        assert egress.grant is not None
        tokens = egress.token_ids or ()
        waited_us = egress.waited_us(self._now())
        self.tell(egress, KvDone(egress.grant.transfer, tokens, egress.finish, waited_us))

    def _tell_abort(self, egress: Egress) -> None:
        assert egress.grant is not None
        self.tell(egress, KvAbort(egress.grant.transfer, egress.abort_reason))

    # ---- work ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._tick_for_ever())
            tasks.create_task(self._pump.run())

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick()

    def _tick(self) -> None:
        now_s = self._now()
        self._early.forget(now_s)
        self._ended.forget(now_s)
        for egress in tuple(self._transfers.values()):
            if egress.lease_over(now_s):
                self._release(egress)
                continue
            if egress.phase is not EgressPhase.ABORTING:
                error = egress.failure(now_s)
                if error is None and egress.deadline.expired(self._clock):
                    error = DeadlineExpired(
                        "the deadline passed before the KV was sent; allow more time or send less work",
                        hop="prefill",
                    )
                if error is not None:
                    self.fail(egress, error)
                    continue
            if egress.go_back(now_s):
                metrics.CELLS_AGAIN.labels("unacknowledged").inc()
                self._pump.wake()
            if egress.ask_again(now_s):
                tell = self._tell_abort if egress.phase is EgressPhase.ABORTING else self._tell_done
                tell(egress)

    def _now(self) -> float:
        return self._clock.monotonic_s()


def _decode_of(grant: KvGrant) -> str:
    """The instance that the grant's subject belongs to; "" when it is no subject for chunks."""
    found = _CHUNK_SUBJECT.fullmatch(grant.subject)
    return found.group(1) if found else ""
