"""The decode worker: reservation → KV → batch → tokens.

One turn: take the finished step's tokens and send them, drop what has no time left, seat new rows, begin
the next step with the drafts that have arrived, tell the speculators. The step itself runs in the engine's
thread; messages are handled meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from services.decode.book import RowBook
from services.decode.compute import Compute
from services.decode.config import DecodeConfig
from services.decode.drafts import DraftBook
from services.decode.ingress import KV_MESSAGES, KvKey, MakeReceiver
from services.decode.output import token_row
from services.decode.row import Phase, Row, expired, read_row
from shared import messages
from shared.actor import Ask, BusActor
from shared.bus import Delivery
from shared.engine import BLOCK_TOKENS, Engine, Reservation, StepResult
from shared.errors import (
    Cancelled,
    InternalError,
    Overloaded,
    PenstockError,
    StaleEpoch,
    Unavailable,
    UnknownMessage,
)
from shared.kv.receiver import KvReceiver
from shared.messages import Accepted, CancelAck, Heartbeat, Held, Snapshot
from shared.service import Service
from shared.telemetry import metrics
from shared.worker.events import CONTROL_LIMIT, InstanceLost, Started, Tick
from shared.worker.gateway_leases import gateway_alive
from shared.worker.outbox import Outbox
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.rate import TokenRate
from shared.worker.wire import sequence_key

log = structlog.get_logger()

UNKNOWN_PREFILL_RETRY_MS = 250  # a heartbeat later a prefill worker that has just started is known


class DecodeActor(BusActor):
    """Owns the engine, the running batch, the KV receiver and the draft sessions."""

    def __init__(
        self,
        service: Service[DecodeConfig],
        model_id: str,
        load: Callable[[], Engine],
        make_receiver: MakeReceiver,
        mirror: PrefixMirror,
    ) -> None:
        super().__init__("decode", service, control_limit=CONTROL_LIMIT)
        self._service = service
        self._model_id = model_id
        self._mirror = mirror
        self._make_receiver = make_receiver
        self._compute = Compute("decode-engine", load, mirror, self.wake)
        self._drafts = DraftBook(
            service.instance, service.config.draft_tokens, service.config.draft_batch_tokens
        )
        self._rate = TokenRate()
        self._outbox = Outbox(service.bus, "decode")
        self._book: RowBook
        self._receiver: KvReceiver
        self._receiving: asyncio.Task[None] | None = None
        self._failures: deque[tuple[Row, PenstockError]] = deque()
        self._late_told = 0
        self._idle = asyncio.Event()

    # ---- life -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        await self._compute.open()
        engine = self._compute.engine
        self._book = RowBook(
            max_rows=engine.config.max_sequences,
            kv_blocks=engine.config.kv_blocks,
            is_alive=gateway_alive(self._service.fleet),
        )
        self._receiver = self._make_receiver(engine, self._on_complete, self._on_failed, self._on_released)
        await self._receiver.start()
        self._receiving = asyncio.create_task(self._receiver.run_transfers(), name="kv-receiver")
        self._receiving.add_done_callback(lambda _: self.wake())
        log.info("engine_ready", kv_blocks=engine.config.kv_blocks)

    async def on_stop(self) -> None:
        """Every session that counted on this worker hears of its end, so that it can go elsewhere at once."""
        if self._receiving is not None:
            await self._give_up(self._receiving)
        await self._compute.close()

    async def _give_up(self, receiving: asyncio.Task[None]) -> None:
        error: PenstockError = InternalError("the decode worker failed; its log has the cause", hop="decode")
        if self._stopping:
            error = Unavailable("the decode worker has stopped", hop="decode")
        for row in list(self._book.placed.values()):
            await self._lose(row, error)
        await self._send_drafts()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        self._receiver.close()

    async def drained(self) -> None:
        """Returns when nothing is left to do; bounded by the service's drain timeout."""
        while self._book.placed:
            self._idle.clear()
            await self._idle.wait()

    def status(self) -> Heartbeat:
        if not self._compute.loaded:  # a restarted actor gets a fresh engine first
            return self._service.heartbeat(state="loading", model=self._model_id)
        engine, delta = self._compute.engine, self._mirror.drain()
        return self._service.heartbeat(
            model=self._model_id,
            layout=engine.layout.fingerprint(),
            capacity=engine.config.max_sequences,
            live=len(self._book.placed),
            queued=len(self._book.in_phase(Phase.WAITING)),
            kv_blocks=engine.config.kv_blocks,
            kv_blocks_free=self._book.free_blocks,
            tokens_per_s=self._rate.tokens_per_s,
            prefix_event_id=delta.event_id,
            added=delta.added,
            removed=delta.removed,
        )

    def snapshot(self) -> Snapshot:
        return self._mirror.snapshot()

    def held(self) -> Iterable[Held]:
        yield from self._book.held()
        yield from self._receiver.held()
        yield from (Held(request_id, "draft", 1, "") for request_id, _ in self._drafts.held())
        for key, blocks in self._compute.facts.held.items():
            yield Held(key.rpartition("/")[0], "kv_blocks", blocks, "")

    # ---- messages ---------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Messages of a transfer pass the mailbox by: their order matters, and the receiver never waits."""
        if not isinstance(delivery.message, KV_MESSAGES):
            super().receive(delivery)
        elif self._receiving is not None:
            self._receiver.handle_message(delivery)
        else:
            raise Unavailable("the decode worker is starting", hop="decode")

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case messages.Reserve() as reserve:
                await self._accept(delivery, reserve)
            case messages.Cancel(reason):
                await self._cancel(delivery, reason)
            case messages.DraftBlock() as block:
                self._drafts.receive(block)
            case messages.DraftResync(request_ids, epochs):
                self._drafts.resync(request_ids, epochs)
            case message:
                raise UnknownMessage(f"a decode worker has no use for {type(message).__name__}")

    async def on_item(self, item: Any) -> None:
        match item:
            case Ask(item=Started()):
                item.answer()
            case Tick():
                for row in self._book.abandoned():
                    log.info("lease_expired", request_id=row.request_id, phase=row.phase.value)
                    await self._stop(row, "lease expired")
            case InstanceLost(role, instance, why):
                await self._instance_lost(role, instance, why)
            case _:
                await super().on_item(item)

    async def _accept(self, delivery: Delivery, reserve: messages.Reserve) -> None:
        """Refuse at once, or count it in; the answer follows when the engine has made the reservation."""
        envelope, engine = delivery.envelope, self._compute.engine
        row = read_row(
            envelope,
            reserve,
            self.bus.deadline_of(envelope),
            vocab_size=engine.model_config.vocab_size,
            max_model_len=engine.max_model_len,
        )
        if self._service.stopping.is_set():
            raise Overloaded("this worker is draining; use another one")
        self._book.check_epoch(row.request_id, row.epoch)
        if row.key in self._book.placed:
            raise StaleEpoch("this placement of the request is here already")
        for earlier in self._book.of_request(row.request_id):
            await self._stop(earlier, "replaced")
        self._book.add(row)

    async def _cancel(self, delivery: Delivery, reason: str) -> None:
        envelope = delivery.envelope
        rows = self._book.cancel(envelope.request_id, envelope.epoch, reason)
        phase = rows[0].phase.value if rows else ""
        for row in rows:
            await self._stop(row, reason)
        if envelope.reply:
            await self.bus.reply(envelope, CancelAck(bool(rows), phase))

    async def _instance_lost(self, role: str, instance: str, why: str) -> None:
        """A silent gateway keeps its lease, a dead one does not; a lost speculator costs only speed."""
        if role == "prefill":
            for row in self._book.in_phase(Phase.RESERVING):
                if row.prefill == instance:
                    await self._lose(
                        row, Unavailable(f"prefill worker {instance} was lost ({why})", hop="prefill")
                    )
            self._receiver.peer_lost(instance)
        elif role == "speculator":
            self._drafts.lose(instance)
        elif role == "gateway" and why != "suspect":
            for row in self._book.of_gateway(instance):
                await self._stop(row, "gateway lost")

    # ---- one turn -----------------------------------------------------------------------------------

    async def turn(self) -> bool:
        if self._receiving is not None and self._receiving.done():
            raise InternalError("the KV receiver ended") from self._receiving.exception()
        await self._tell_failures()
        if self._compute.stepping:
            result = self._compute.take()
            if result is None:
                return False
            await self._after_step(result)
        for row in self._book.expired():
            await self._lose(row, expired(row))
        await self._seat()
        await self._compute.flush_releases()
        if self._compute.facts.has_work:
            self._compute.begin_step(self._drafts.proposals())
        await self._send_drafts()
        self._show()
        return False

    async def _after_step(self, result: StepResult) -> None:
        """Tokens first: they are what somebody waits for. A row that failed ("error") tells so with its last
        tokens, and so behind them; like every finished row it holds nothing here any more."""
        outputs = [
            (row, output)
            for output in result.outputs
            if (row := self._book.placed.get(output.key)) is not None and row.phase is Phase.DECODING
        ]
        await self._outbox.tokens(token_row(row, output) for row, output in outputs)
        for row, output in outputs:
            if output.finish_reason is None:
                self._drafts.advance(
                    row.key, output.token_ids, output.proposed_drafts, output.accepted_drafts
                )
            else:
                self._end(row)
        self._rate.observe(sum(len(output.token_ids) for _, output in outputs), result.step_us)

    async def _seat(self) -> None:
        new, ready = self._book.in_phase(Phase.RESERVING), self._book.in_phase(Phase.READY)
        if not new and not ready:
            return
        seating = await self._compute.seat(new, ready)
        for row, reserved in zip(new, seating.reserved, strict=True):
            await self._reserved(row, reserved)
        for row, error in zip(ready, seating.attached, strict=True):
            if error is not None:
                await self._lose(row, error)
                continue
            row.phase = Phase.DECODING
            row.queue_us = max(0, round((time.monotonic() - row.ready_s) * 1e6))
            self._drafts.open(
                row.request_id, row.epoch, row.speculator, row.token_ids, row.spec.prompt_len, row.sampling
            )
        self._service.changed()

    async def _reserved(self, row: Row, reserved: Reservation | PenstockError) -> None:
        """The blocks are there: let KV come, and say so to whoever asked."""
        try:
            if isinstance(reserved, PenstockError):
                raise reserved
            self._expect(row, reserved)
        except PenstockError as error:
            self._end(row)
            await self._outbox.answer(row.envelope, error)
        else:
            await self._outbox.answer(row.envelope, Accepted(reserved.num_cached_blocks * BLOCK_TOKENS))

    def _expect(self, row: Row, reserved: Reservation) -> None:
        prefill = self._service.fleet.get("prefill", row.prefill)
        if prefill is None:
            raise Overloaded(
                f"prefill worker {row.prefill} is not known here; try again or use another one",
                retry_after_ms=UNKNOWN_PREFILL_RETRY_MS,
            )
        first = reserved.num_cached_blocks
        metrics.PREFIX_CACHE_QUERIES.inc(len(row.spec.block_hashes))
        metrics.PREFIX_CACHE_HITS.inc(first)
        row.phase = Phase.WAITING
        self._receiver.expect_transfer(
            row.request_id,
            row.epoch,
            row.gateway,
            row.prefill,
            prefill.heartbeat.incarnation,
            reserved.block_ids,
            first,
            len(reserved.block_ids) - first,
            row.deadline,
        )

    async def _send_drafts(self) -> None:
        for speculator, request_id, epoch, message in self._drafts.outgoing():
            await self._outbox.tell("speculator", speculator, message, request_id, epoch)
        late = self._drafts.counts.late
        metrics.DRAFT_LATE.inc(late - self._late_told)
        self._late_told = late

    # ---- KV, called by the receiver from anywhere on the loop --------------------------------------

    def _on_complete(self, key: KvKey, token_ids: tuple[int, ...], finish: str, exposed_us: int) -> None:
        row = self._book.placed.get(sequence_key(*key))
        if row is None or row.phase is not Phase.WAITING:
            return
        if finish:  # the first token was the last
            self._end(row)
            return
        row.phase = Phase.READY
        row.first_tokens = token_ids
        row.transfer_us = exposed_us
        row.ready_s = time.monotonic()
        self.wake()

    def _on_failed(self, key: KvKey, error: PenstockError) -> None:
        row = self._book.placed.get(sequence_key(*key))
        if row is not None and row.phase is Phase.WAITING:
            row.phase = Phase.STOPPING
            self._failures.append((row, error))
            self.wake()

    def _on_released(self, key: KvKey) -> None:
        row = self._book.placed.get(sequence_key(*key))
        if row is not None:
            self._end(row)

    async def _tell_failures(self) -> None:
        while self._failures:
            row, error = self._failures.popleft()
            await self._outbox.lost(row.gateway, row.request_id, row.epoch, error)

    # ---- ends -----------------------------------------------------------------------------------------

    def _end(self, row: Row) -> None:
        """Nothing can write into the row's blocks any more: give everything back."""
        self._drafts.close(row.key)
        self._book.remove(row.key)
        self._compute.release_later(row.key)
        self._service.changed()
        self.wake()

    async def _stop(self, row: Row, reason: str) -> None:
        """Give back what the row holds, as its phase allows; its session knows already."""
        if row.phase is Phase.WAITING:
            row.phase = Phase.STOPPING  # until no late KV can land in its blocks
            self._receiver.abort_transfer(row.kv_key, reason)
        elif row.phase is not Phase.STOPPING:
            if row.phase is Phase.RESERVING:
                await self._outbox.answer(row.envelope, Cancelled(f"the request was cancelled ({reason})"))
            self._end(row)

    async def _lose(self, row: Row, error: PenstockError) -> None:
        """The row cannot go on here: its session hears of it, then everything is given back."""
        if row.phase is Phase.STOPPING:
            return
        if row.phase is Phase.RESERVING:  # the answer to Reserve says it
            self._end(row)
            await self._outbox.answer(row.envelope, error)
            return
        await self._outbox.lost(row.gateway, row.request_id, row.epoch, error)
        await self._stop(row, error.code)

    # ---- to be seen -------------------------------------------------------------------------------------

    def _show(self) -> None:
        self._compute.show_blocks()
        metrics.QUEUE_DEPTH.labels(service="decode").set(len(self._book.in_phase(Phase.WAITING)))
        if not self._book.placed:
            self._idle.set()
