"""KvReceiver: the KV ingress of one process, for services that decode.

Everything but `start`, `run` and `close` is called from the event loop's thread and never blocks. The
callbacks are called from there too, must not raise, and may call back into the receiver.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.bus import Delivery, subjects
from shared.bus.bulk import BulkConnection
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import (
    ChecksumMismatch,
    DeadlineExpired,
    InvalidRequest,
    PenstockError,
    ProtocolError,
    StaleEpoch,
    Unavailable,
)
from shared.kv import metrics
from shared.kv.cells import Run
from shared.kv.chunk import MAX_EPOCH
from shared.kv.copier import Copier
from shared.kv.expiring import Expiring
from shared.kv.grants import Grants
from shared.kv.ingress import Ingress, IngressPhase
from shared.kv.landing import Landing
from shared.kv.limits import MAX_TOMBSTONES, MAX_TRANSFER_BLOCKS, TICK_S, TOMBSTONE_S
from shared.kv.outbox import ControlBus, Outbox
from shared.kv.peers import Peer, Peers
from shared.kv.pool_memory import Pool, PoolMemory
from shared.messages import (
    Held,
    KvAbort,
    KvAbortAck,
    KvDone,
    KvMissing,
    KvReady,
    KvReceived,
    Message,
)
from shared.telemetry.metrics import STALE_MESSAGES

Key = tuple[str, int]
"""request_id, epoch."""

TRANSPORTS = ("auto", "nats", "shm")


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is remembered of a transfer, to answer a repeated question."""

    key: Key
    prefill: str
    complete: bool


class KvReceiver:
    """`on_complete(key, token_ids, finish, exposed_us)`: all KV is in the pool and verified (or, with
    `finish`, not needed any more). `on_failed(key, error)`: it will not come. Either is called at most
    once per `expect`, and neither after `abort`. After a failure or an abort, `on_released(key)` says
    when the blocks may be reused.
    """

    def __init__(
        self,
        bus: ControlBus,
        bulk: BulkConnection,
        instance: str,
        incarnation: int,
        pool: Pool,
        transport: str = "auto",
        *,
        on_complete: Callable[[Key, tuple[int, ...], str, int], None],
        on_failed: Callable[[Key, PenstockError], None],
        on_released: Callable[[Key], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`transport`: "nats", "auto" (shm where possible) or "shm" (requests fail where it is not)."""
        if transport not in TRANSPORTS:
            raise InvalidRequest(f"the KV transport is one of {', '.join(TRANSPORTS)}, not {transport!r}")
        self._bus = bus
        self._bulk = bulk
        self._memory = PoolMemory.of(pool)
        self._subject = subjects.kv(instance, incarnation)
        self._transport = transport
        self._on_complete = on_complete
        self._on_failed = on_failed
        self._on_released = on_released
        self._clock = clock
        self._outbox = Outbox(bus)
        self._peers = Peers(bus, pool.layout, clock)
        self._landing = Landing(self._memory, self._by_transfer, self)
        self._numbers = itertools.count(1)
        self._transfers: dict[int, Ingress] = {}
        self._requests: dict[str, Ingress] = {}
        self._grants = Grants(self._subject, pool.layout.fingerprint(), self._tell, clock)
        self._copier = Copier(self._peers, self._memory, self._transfers, self)
        self._ended: Expiring[int, _Ended] = Expiring(MAX_TOMBSTONES, TOMBSTONE_S)

    # ---- what the service says -----------------------------------------------------------------

    async def start(self) -> None:
        """Listen for chunks."""
        await self._bulk.serve(self._subject, self._landing)

    def expect(
        self,
        request_id: str,
        epoch: int,
        origin: str,
        prefill: str,
        prefill_incarnation: int,
        block_ids: Sequence[int],
        first_block: int,
        num_blocks: int,
        deadline: Deadline,
    ) -> None:
        """Let `prefill` send request blocks [first_block, first_block + num_blocks).

        `block_ids` is the request's block table: request block i goes to pool block block_ids[i]. Blocks
        before first_block are here already, those after the range (room for output) are left alone. An
        older epoch of the request ends with StaleEpoch. Raises InvalidRequest, StaleEpoch.
        """
        end = first_block + num_blocks
        blocks = block_ids[first_block:end]
        fits = 0 <= first_block <= end <= len(block_ids) and num_blocks <= MAX_TRANSFER_BLOCKS
        if not fits or not 0 <= epoch <= MAX_EPOCH or len(set(blocks)) != num_blocks:
            raise InvalidRequest(f"blocks [{first_block}, {end}) of {len(block_ids)} cannot be received")
        self._memory.check_blocks(blocks)
        earlier = self._requests.get(request_id)
        if earlier is not None:
            if earlier.key[1] >= epoch:
                raise StaleEpoch(f"request {request_id} is already received under epoch {earlier.key[1]}")
            self._tell(earlier, KvAbort(earlier.transfer, "replaced"))
            self.fail(earlier, StaleEpoch("the request was placed again under a new epoch"), tell=False)
        ingress = Ingress(
            request_id,
            epoch,
            next(self._numbers),
            origin=origin,
            prefill=prefill,
            incarnation=prefill_incarnation,
            block_ids=block_ids,
            first_block=first_block,
            num_blocks=num_blocks,
            deadline=deadline,
            num_layers=self._memory.num_layers,
            cell_bytes=self._memory.cell_bytes,
            now_s=self._now(),
        )
        self._transfers[ingress.transfer] = ingress
        self._requests[request_id] = ingress
        if self._transport == "nats" or num_blocks == 0:
            self._grants.over_nats(ingress)
        else:
            self._copier.choose_transport(ingress)

    def abort(self, key: Key, reason: str) -> None:
        """Give up; `on_released` follows, at once or when the sender has acknowledged.

        Unknown keys are ignored: the transfer may have ended meanwhile.
        """
        ingress = self._requests.get(key[0])
        if ingress is not None and ingress.key == key and ingress.phase is not IngressPhase.ABORTING:
            self._abort(ingress, reason)

    def peer_lost(self, prefill: str) -> None:
        """That prefill worker is gone: it will send nothing any more, and what comes late lands nowhere."""
        for ingress in tuple(self._transfers.values()):
            if ingress.prefill == prefill:
                gone = Unavailable(f"prefill worker {prefill} is gone", hop="prefill")
                self.fail(ingress, gone, tell=False)
        self._peers.forget(prefill)

    def held(self) -> tuple[Held, ...]:
        return tuple(Held(i.key[0], "transfer", i.num_blocks, str(i.phase)) for i in self._transfers.values())

    def close(self) -> None:
        """Write to the pool no more, whatever still comes, and let go of the mapped pools.

        No callback is called: the transfers end with their owner, and their senders have leases.
        """
        for ingress in tuple(self._transfers.values()):
            self._forget(ingress)
        self._peers.close()

    # ---- what the sender says ------------------------------------------------------------------

    def handle(self, delivery: Delivery) -> bool:
        """Take a KV message from the inbox; False when it is not one for a receiver."""
        message, envelope = delivery.message, delivery.envelope
        if not isinstance(message, KvReady | KvDone | KvAbort | KvAbortAck):
            return False
        ingress = self._transfers.get(message.transfer)
        key = (envelope.request_id, envelope.epoch)
        if ingress is None or ingress.key != key:
            self._handle_ended(message, key)
            return True
        match message:
            case KvReady():
                self._take_ready(ingress, message)
            case KvDone():
                ingress.take_done(message, self._now())
                self._complete_if_all_is_in(ingress)
            case KvAbort():
                self._tell(ingress, KvAbortAck(message.transfer))
                why = Unavailable(f"the prefill worker aborted: {message.reason[:200]}", hop="prefill")
                self.fail(ingress, why, tell=False)
            case KvAbortAck():
                if ingress.phase is IngressPhase.ABORTING:
                    self._release(ingress)
        return True

    def _handle_ended(self, message: KvReady | KvDone | KvAbort | KvAbortAck, key: Key) -> None:
        """A repeated question gets its answer again: the first one may be lost."""
        ended = self._ended.get(message.transfer)
        if ended is None or ended.key != key or isinstance(message, KvReady | KvAbortAck):
            STALE_MESSAGES.inc()
            return
        answer: Message
        if isinstance(message, KvAbort):
            answer = KvAbortAck(message.transfer)
        elif ended.complete:
            answer = KvReceived(message.transfer)
        else:
            answer = KvAbort(message.transfer, "the decode worker gave this transfer up")
        self._outbox.publish(subjects.inbox("prefill", ended.prefill), answer, self._bus.envelope(*key))

    def _take_ready(self, ingress: Ingress, ready: KvReady) -> None:
        if ingress.phase is not IngressPhase.RECEIVING:
            return
        try:
            self._copier.take_ready(ingress, ready)
        except (ProtocolError, InvalidRequest) as error:
            self.fail(ingress, error)

    # ---- messages------------------------------------------------------------------------------

    def choose_transport(self, ingress: Ingress, peer: Peer) -> None:
        if peer.mapping is not None:
            self._grants.over_shm(ingress)
        elif self._transport == "shm":
            why = f"the shm transport is demanded and not possible here: {peer.why}"
            self.fail(ingress, Unavailable(why, hop="decode"))
        else:
            self._grants.over_nats(ingress)

    def _tell(self, ingress: Ingress, message: Message) -> None:
        envelope = self._bus.envelope(*ingress.key, ingress.deadline, ingress.origin)
        self._outbox.publish(subjects.inbox("prefill", ingress.prefill), message, envelope)

    # ---- chunks and cells (LandingOwner, CopierOwner) ------------------------------------------

    def _by_transfer(self, transfer: int) -> Ingress | None:
        return self._transfers.get(transfer)

    def cells_verified(self, ingress: Ingress, run: Run) -> None:
        ingress.verified(run, self._now())
        metrics.TRANSFER_BYTES.labels(ingress.transport).inc(run.count * ingress.cell_bytes)
        self._complete_if_all_is_in(ingress)
        self._grants.tell_credit(ingress)

    def cells_corrupt(self, ingress: Ingress, run: Run) -> None:
        metrics.CHECKSUM_FAILURES.inc()
        try:
            cells = ingress.failed_checksum(run)
        except ChecksumMismatch as error:
            self.fail(ingress, error)
            return
        self._tell(ingress, KvMissing(ingress.transfer, cells))
        self._grants.tell_credit(ingress)

    def chunk_unneeded(self, ingress: Ingress) -> None:
        self._grants.tell_credit(ingress)

    # ---- ends ----------------------------------------------------------------------------------

    def _complete_if_all_is_in(self, ingress: Ingress) -> None:
        if ingress.phase is not IngressPhase.RECEIVING or not ingress.complete:
            return
        done, now_s = ingress.done, self._now()
        assert done is not None
        exposed_us = ingress.exposed_us(now_s)
        metrics.TRANSFERS.labels(ingress.transport, "received").inc()
        metrics.TRANSFER_SECONDS.labels(ingress.transport).observe(now_s - ingress.started_s)
        metrics.EXPOSED_SECONDS.labels(ingress.transport).observe(exposed_us / 1e6)
        self._tell(ingress, KvReceived(ingress.transfer))
        self._forget(ingress)
        self._on_complete(ingress.key, done.token_ids, done.finish, exposed_us)

    def fail(self, ingress: Ingress, error: PenstockError, *, tell: bool = True) -> None:
        """End with an error; without `tell` the sender needs no abort, so the blocks are free at once."""
        already = ingress.phase is IngressPhase.ABORTING
        if not already:
            metrics.TRANSFERS.labels(ingress.transport, error.code).inc()
        if not tell:
            self._forget(ingress)
        elif not already:
            self._abort(ingress, error.code, error)
            return
        if not already:
            self._on_failed(ingress.key, error)
        if not tell:
            self._on_released(ingress.key)

    def _abort(self, ingress: Ingress, reason: str, error: PenstockError | None = None) -> None:
        granted = ingress.abort(reason, self._now())
        self._stop_writing(ingress)
        if error is not None:
            self._on_failed(ingress.key, error)
        if self._transfers.get(ingress.transfer) is not ingress:
            return  # on_failed ended it
        if granted:
            self._tell(ingress, KvAbort(ingress.transfer, reason))
        else:
            self._release(ingress)

    def _release(self, ingress: Ingress) -> None:
        self._forget(ingress)
        self._on_released(ingress.key)

    def _forget(self, ingress: Ingress) -> None:
        self._stop_writing(ingress)
        ingress.phase = IngressPhase.ENDED
        del self._transfers[ingress.transfer]
        if self._requests.get(ingress.key[0]) is ingress:
            del self._requests[ingress.key[0]]
        ended = _Ended(ingress.key, ingress.prefill, ingress.complete)
        self._ended.put(ingress.transfer, ended, self._now())

    def _stop_writing(self, ingress: Ingress) -> None:
        """From here on no byte of this transfer can reach the pool."""
        if self._landing.current is ingress:
            self._bulk.discard_body(self._landing)
            self._landing.lost()
        ingress.copies.clear()
        self._grants.give_back(ingress)

    # ---- work ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive until cancelled; the service supervises this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._copier.run())
            tasks.create_task(self._tick_for_ever())

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick()

    def _tick(self) -> None:
        now_s = self._now()
        self._ended.forget(now_s)
        for ingress in tuple(self._transfers.values()):
            if self._transfers.get(ingress.transfer) is ingress:
                self._look_after(ingress, now_s)

    def _look_after(self, ingress: Ingress, now_s: float) -> None:
        if ingress.lease_over(now_s):
            self._release(ingress)
            return
        error = ingress.failure(now_s)
        if (
            error is None
            and ingress.phase is not IngressPhase.ABORTING
            and ingress.deadline.expired(self._clock)
        ):
            error = DeadlineExpired(
                "the deadline passed before the KV was here; allow more time or send less work", hop="decode"
            )
        if error is not None:
            self.fail(ingress, error)
            return
        self._grants.tell_credit(ingress)
        missing = ingress.take_missing(now_s)
        if missing:
            metrics.CELLS_AGAIN.labels("asked").inc(len(missing))
            self._tell(ingress, KvMissing(ingress.transfer, missing))
        if ingress.ask_again(now_s):
            if ingress.phase is IngressPhase.ABORTING:
                self._tell(ingress, KvAbort(ingress.transfer, ingress.abort_reason))
            else:
                self._grants.tell_again(ingress)

    def _now(self) -> float:
        return self._clock.monotonic_s()
