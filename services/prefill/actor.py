"""The prefill worker: mailbox → queue → engine → first token and KV on their way.

One turn: take the finished step's results, drop what has no time left, admit the most urgent prompts, begin
the next step. The step itself runs in the engine's thread; messages are handled meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from services.prefill.book import JobBook, Lost, expired
from services.prefill.compute import Compute
from services.prefill.config import PrefillConfig
from services.prefill.egress import Egress
from services.prefill.job import Job, Phase, read_job
from shared import messages
from shared.actor import Ask, BusActor
from shared.bus import Delivery
from shared.engine import BLOCK_TOKENS, AdmitResult, Engine, StepResult, TokenOutput
from shared.errors import InternalError, Overloaded, PenstockError, Unavailable, UnknownMessage
from shared.kv.sender import KvSender
from shared.kv_hash import max_cached_blocks
from shared.messages import Accepted, CancelAck, Heartbeat, Held, Mark, Snapshot
from shared.service import Service
from shared.telemetry import metrics
from shared.worker.events import CONTROL_LIMIT, InstanceLost, Started, Tick
from shared.worker.gateway_leases import gateway_alive
from shared.worker.outbox import Outbox
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.rate import TokenRate
from shared.worker.wire import TokenRow, sequence_key

log = structlog.get_logger()

KV_MESSAGES = (
    messages.KvProbe,
    messages.KvGrant,
    messages.KvCredit,
    messages.KvMissing,
    messages.KvReceived,
    messages.KvAbort,
    messages.KvAbortAck,
)

KvKey = tuple[str, int]
OnReleased = Callable[[KvKey], None]
OnFailed = Callable[[KvKey, PenstockError], None]
MakeSender = Callable[[Engine, OnReleased, OnFailed], KvSender]


class PrefillActor(BusActor):
    """Owns the engine, the queue and the KV sender."""

    def __init__(
        self,
        service: Service[PrefillConfig],
        model_id: str,
        load: Callable[[], Engine],
        make_sender: MakeSender,
        mirror: PrefixMirror,
    ) -> None:
        super().__init__("prefill", service, control_limit=CONTROL_LIMIT)
        self._service = service
        self._model_id = model_id
        self._mirror = mirror
        self._make_sender = make_sender
        self._compute = Compute(load, mirror, self.wake)
        self._book = JobBook(service.config, gateway_alive(self._service.fleet))
        self._rate = TokenRate()
        self._outbox = Outbox(service.bus, "prefill")
        self._sender: KvSender
        self._sending: asyncio.Task[None] | None = None
        self._transfer_ends: deque[tuple[KvKey, PenstockError | None]] = deque()
        self._idle = asyncio.Event()

    # ---- life -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        await self._compute.open()
        self._sender = self._make_sender(self._compute.engine, self._on_released, self._on_failed)
        self._sending = asyncio.create_task(self._sender.run(), name="kv-sender")
        self._sending.add_done_callback(lambda _: self.wake())
        self._egress = Egress(self._sender, self._compute.engine.layout.num_layers)
        log.info("engine_ready", kv_blocks=self._compute.engine.config.kv_blocks)

    async def on_stop(self) -> None:
        """Every session that counted on this worker hears of its end, so that it can go elsewhere at once."""
        error: PenstockError = InternalError("the prefill worker failed; its log has the cause")
        if self._stopping:
            error = Unavailable("the prefill worker has stopped", hop="prefill")
        for job in list(self._book.placed.values()):
            if job.phase is not Phase.STOPPING:
                await self._outbox.lost(job.gateway, job.request_id, job.epoch, error)
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._compute.close()

    async def drained(self) -> None:
        """Returns when nothing is left to do; bounded by the service's drain timeout."""
        while self._book.placed:
            self._idle.clear()
            await self._idle.wait()

    def status(self) -> Heartbeat:
        if not self._compute.loaded:  # a restarted actor gets a fresh engine first
            return self._service.heartbeat(state="loading", model=self._model_id)
        engine, facts, delta = self._compute.engine, self._compute.facts, self._mirror.drain()
        return self._service.heartbeat(
            model=self._model_id,
            layout=engine.layout.fingerprint(),
            capacity=engine.config.max_sequences,
            live=len(self._book.placed) - len(self._book.queue),
            queued=len(self._book.queue),
            queued_tokens=self._book.queue.queued_tokens + self._book.computing_tokens,
            kv_blocks=engine.config.kv_blocks,
            kv_blocks_free=facts.free_blocks,
            tokens_per_s=self._rate.tokens_per_s,
            prefix_event_id=delta.event_id,
            added=delta.added,
            removed=delta.removed,
        )

    def snapshot(self) -> Snapshot:
        return self._mirror.snapshot()

    def held(self) -> Iterable[Held]:
        for job in self._book.placed.values():
            kind = "queued" if job.phase is Phase.QUEUED else "transfer"
            yield Held(job.request_id, kind, 1, job.phase.value)
        for key, blocks in self._compute.facts.held.items():
            yield Held(key.rpartition("/")[0], "kv_blocks", blocks, "")

    # ---- messages ---------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Messages of a transfer pass the mailbox by: their order matters, and the sender never waits."""
        if not isinstance(delivery.message, KV_MESSAGES):
            super().receive(delivery)
        elif self._sending is not None:
            self._sender.handle(delivery)
        else:
            raise Unavailable("the prefill worker is starting", hop="prefill")

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case messages.Prefill() as prefill:
                await self._accept(delivery, prefill)
            case messages.Cancel(reason):
                await self._cancel(delivery, reason)
            case messages.Warm() as warm:
                self._warm(warm)
            case message:
                raise UnknownMessage(f"a prefill worker has no use for {type(message).__name__}")

    async def on_item(self, item: Any) -> None:
        match item:
            case Ask(item=Started()):
                item.answer()
            case Tick():
                await self._tick()
            case InstanceLost(role, instance, why):
                await self._instance_lost(role, instance, why)
            case _:
                await super().on_item(item)

    async def _accept(self, delivery: Delivery, prefill: messages.Prefill) -> None:
        """Into the queue, or a typed refusal at once; nothing here waits for the engine."""
        envelope, engine = delivery.envelope, self._compute.engine
        job = read_job(
            envelope,
            prefill,
            self.bus.deadline_of(envelope),
            vocab_size=engine.model_config.vocab_size,
            max_model_len=engine.max_model_len,
            now_s=time.monotonic(),
        )
        if self._service.stopping.is_set():
            raise Overloaded("this worker is draining; use another one")
        self._book.check_epoch(job.request_id, job.epoch)
        if job.key not in self._book.placed:
            for earlier in self._book.of_request(job.request_id):
                self._stop(earlier, "replaced")
            known = self._mirror.overlap_blocks(job.spec.block_hashes[: max_cached_blocks(job.num_tokens)])
            job.cached_tokens = known * BLOCK_TOKENS
            self._book.add(job, self._rate.tokens_per_s)
            self._service.changed()
        await self.bus.reply(envelope, Accepted(self._book.placed[job.key].cached_tokens))

    async def _cancel(self, delivery: Delivery, reason: str) -> None:
        envelope = delivery.envelope
        jobs = self._book.cancel(envelope.request_id, envelope.epoch, reason)
        phase = jobs[0].phase.value if jobs else ""
        for job in jobs:
            self._stop(job, reason)
        if envelope.reply:
            await self.bus.reply(envelope, CancelAck(bool(jobs), phase))

    def _warm(self, warm: messages.Warm) -> None:
        busy = bool(self._book.placed) or self._service.stopping.is_set()
        if not self._compute.warmth.offer(warm, busy=busy):
            metrics.DROPPED_MESSAGES.labels(reason="warm_skipped").inc()

    async def _instance_lost(self, role: str, instance: str, why: str) -> None:
        """A decode worker that is gone takes no KV. A silent gateway keeps its lease, a dead one does not."""
        if role == "decode":
            for job in self._book.in_phase(Phase.QUEUED):
                if job.decode == instance:
                    await self._lose(
                        job, Unavailable(f"decode worker {instance} was lost ({why})", hop="decode")
                    )
            self._sender.peer_lost(instance)
        elif role == "gateway" and why != "suspect":
            for job in self._book.of_gateway(instance):
                self._stop(job, "gateway lost")

    async def _tick(self) -> None:
        for job in self._book.abandoned():
            log.info("lease_expired", request_id=job.request_id, phase=job.phase.value)
            self._stop(job, "lease expired")
        for job in self._book.expired_in_work():
            if job.phase is Phase.SENDING:  # computing ones are looked at between chunks
                await self._lose(job, expired("while KV was sent"))
        await self._tell_lost(self._book.expired_in_queue())

    # ---- one turn -----------------------------------------------------------------------------------

    async def turn(self) -> bool:
        if self._sending is not None and self._sending.done():
            raise InternalError("the KV sender ended") from self._sending.exception()
        if self._compute.stepping:
            result = self._compute.take()
            if result is None:
                return False
            await self._after_step(result)
        await self._end_transfers()
        for job in self._book.expired_in_work():
            await self._lose(job, expired(f"while prefill was {job.phase.value}"))
        await self._admit()
        await self._compute.flush_releases()
        if self._compute.facts.has_work:
            self._compute.begin_step()
        self._show()
        return False

    async def _after_step(self, result: StepResult) -> None:
        self._rate.observe(result.num_prefill_tokens, result.step_us)
        for progress in result.computed:
            computed = self._book.placed.get(progress.key)
            if computed is not None:
                computed.computed_tokens = progress.end_token
        first_tokens = [
            (job, output)
            for output in result.outputs
            if (job := self._book.placed.get(output.key)) is not None and job.phase is Phase.COMPUTING
        ]
        # The first token goes out before KvDone: time to first token never waits for the transfer.
        await self._outbox.tokens(self._token_row(job, output) for job, output in first_tokens)
        for job, output in first_tokens:
            job.phase = Phase.SENDING
            self._sender.finish(job.kv_key, output.token_ids, output.finish_reason or "")

    def _token_row(self, job: Job, output: TokenOutput) -> TokenRow:
        now_s = time.monotonic()
        marks = (
            Mark("prefill.queue", _us(job.started_s - job.arrived_s)),
            Mark("prefill.compute", _us(now_s - job.started_s)),
        )
        for mark in marks:
            metrics.HOP_SECONDS.labels("prefill", mark.phase.partition(".")[2]).observe(
                mark.duration_us / 1e6
            )
        return TokenRow(job.detokenizer, job.request_id, job.epoch, output, marks)

    async def _admit(self) -> None:
        """Fill the next chunk with the most urgent prompts; a prefix is warmed only when there are none."""
        room = self._compute.room_tokens(self._book.computing_tokens, self._book.prompts_ahead)
        jobs, lost = self._book.take(room)
        await self._tell_lost(lost)
        self._compute.yield_to(busy=bool(self._book.placed))
        if jobs:
            callbacks = [self._egress.layer_callback(job) for job in jobs]
            for job, admitted in zip(jobs, await self._compute.admit(jobs, callbacks), strict=True):
                await self._admitted(job, admitted)
        elif not self._book.placed:
            await self._compute.warm()

    async def _admitted(self, job: Job, admitted: AdmitResult | PenstockError) -> None:
        if isinstance(admitted, Overloaded):  # blocks are still on their way out; they come back
            self._book.put_back(job)
            return
        try:
            if isinstance(admitted, PenstockError):
                raise admitted
            job.phase = Phase.COMPUTING
            job.started_s = time.monotonic()
            job.cached_tokens = admitted.cached_tokens
            self._egress.offer(job, admitted.block_ids)
        except PenstockError as error:
            self._book.remove(job.key)
            self._compute.release_later(job.key)
            await self._outbox.lost(job.gateway, job.request_id, job.epoch, error)
        else:
            metrics.PREFIX_CACHE_QUERIES.inc(job.num_tokens // BLOCK_TOKENS)
            metrics.PREFIX_CACHE_HITS.inc(job.cached_tokens // BLOCK_TOKENS)
            self._service.changed()

    # ---- ends -----------------------------------------------------------------------------------------

    def _stop(self, job: Job, reason: str) -> None:
        """Give back what the job holds, as its phase allows; its session knows already."""
        if job.phase is Phase.QUEUED:
            self._book.remove(job.key)
        elif job.phase is Phase.COMPUTING:
            # Released before the transfer's end is acknowledged: an aborted transfer never becomes visible.
            job.phase = Phase.STOPPING
            self._compute.release_later(job.key)
            self._sender.abort(job.kv_key, reason)
        elif job.phase is Phase.SENDING:
            job.phase = Phase.STOPPING
            self._sender.abort(job.kv_key, reason)
        self.wake()

    async def _lose(self, job: Job, error: PenstockError) -> None:
        """The job cannot go on here: its session hears of it, then everything is given back."""
        if job.phase is Phase.STOPPING:
            return
        await self._outbox.lost(job.gateway, job.request_id, job.epoch, error)
        self._stop(job, error.code)

    async def _tell_lost(self, lost: Iterable[Lost]) -> None:
        for job, error in lost:
            await self._outbox.lost(job.gateway, job.request_id, job.epoch, error)

    def _on_released(self, key: KvKey) -> None:
        """By the sender, from anywhere on the loop; the next turn acts on it."""
        self._transfer_ends.append((key, None))
        self.wake()

    def _on_failed(self, key: KvKey, error: PenstockError) -> None:
        self._transfer_ends.append((key, error))
        self.wake()

    async def _end_transfers(self) -> None:
        while self._transfer_ends:
            (request_id, epoch), error = self._transfer_ends.popleft()
            job = self._book.placed.get(sequence_key(request_id, epoch))
            if job is None:
                continue
            if error is None:
                self._book.remove(job.key)
                self._compute.release_later(job.key)
                self._service.changed()
            elif job.phase is not Phase.STOPPING:
                await self._lose(job, error)

    # ---- to be seen -------------------------------------------------------------------------------------

    def _show(self) -> None:
        self._compute.show_blocks()
        metrics.QUEUE_DEPTH.labels(service="prefill").set(len(self._book.queue))
        if not self._book.placed:
            self._idle.set()


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
