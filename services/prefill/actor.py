"""The prefill worker: mailbox → queue → engine → first token and KV on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from services.prefill.book import LostJob, PrefillBook
from services.prefill.config import PrefillConfig
from services.prefill.driver import PrefillDriver
from services.prefill.job import PrefillJob, deadline_passed, read_job
from services.prefill.kv_announcer import KvAnnouncer
from services.prefill.output import job_output
from services.prefill.prefix_fetches import PrefixFetches
from services.prefill.prefix_loans import PrefixLoans
from services.prefill.step_events import StepEvents
from shared import messages
from shared.bus import Delivery
from shared.engine import BLOCK_TOKENS, AdmitResult, Engine, PromptScores, StepResult
from shared.engine.sampling.grammar_verdicts import Verdict
from shared.errors import DeadlineExpired, InvalidRequest, Overloaded, PenstockError, ProtocolError
from shared.kv.both_sides import BothSides, MakeReceiver
from shared.kv.expiring import Expiring
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnFailed, OnReleased, TransferKey
from shared.messages import Accepted, FetchReport, Held
from shared.process.service import Service
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.adapters import WorkerAdapters
from shared.worker.gateway_leases import gateway_alive
from shared.worker.job import JobPhase
from shared.worker.job_book import WorkerLoad
from shared.worker.marks import StepCost
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.prompt_progress import record_progress
from shared.worker.rate import MEASURED_STEP_TOKENS, TokenRate
from shared.worker.wire import sequence_key
from shared.worker.worker_actor import Transfers, WorkerActor

IN_ENGINE = (JobPhase.QUEUED, JobPhase.COMPUTING)
"""The phases of a job that a step was about: the loop may not have heard yet that it has joined."""

MAX_EARLY_VERDICTS = 1024
"""Verdicts of grammars whose routes have not come here yet."""
EARLY_VERDICT_S = 10.0
"""The longest time for which one is remembered."""

MakeSender = Callable[[Engine, OnReleased, OnFailed], KvSender]


class PrefillActor(WorkerActor[PrefillJob]):
    """Owns the engine, the queue, the KV sender, and the receiver of prefixes."""

    kv_messages = (
        messages.KvReady,
        messages.KvDone,
        messages.KvProbe,
        messages.KvGrant,
        messages.KvCredit,
        messages.KvMissing,
        messages.KvReceived,
        messages.KvAbort,
        messages.KvAbortAck,
    )
    peer_role = "decode"

    _driver: PrefillDriver
    _book: PrefillBook

    def __init__(
        self,
        service: Service[PrefillConfig],
        load: Callable[[], Engine],
        make_sender: MakeSender,
        make_receiver: MakeReceiver,
        mirror: PrefixMirror,
        adapters: WorkerAdapters | None = None,
    ) -> None:
        super().__init__(service, PrefillDriver(load, mirror, self.wake), mirror, adapters)
        self._config = service.config
        self._make_sender = make_sender
        self._make_receiver = make_receiver
        self._rate = TokenRate(min(MEASURED_STEP_TOKENS, service.config.max_batch_tokens))
        self._ended_transfers: deque[tuple[TransferKey, PenstockError | None]] = deque()
        self._early_verdicts: Expiring[tuple[str, str], Verdict] = Expiring(
            MAX_EARLY_VERDICTS, EARLY_VERDICT_S
        )
        """Verdicts of grammars, by the key of a route that is not known yet and by who has said so."""
        self._refused: list[LostJob] = []
        """Their sessions are to hear of it."""

    async def open_transfers(self) -> Transfers:
        engine = self._driver.engine
        self._book = PrefillBook(self._config, gateway_alive(self._service.fleet))
        self._sender = self._make_sender(engine, self._on_released, self._on_failed)
        self._step_events = StepEvents()
        self._announcer = KvAnnouncer(self._sender, engine.layout.num_layers, self._step_events)
        self._loans = PrefixLoans(self.bus, self._driver, self._sender, self.wake)
        self._fetches = PrefixFetches(
            self._service.instance,
            self._config.prefix_fetches,
            self.bus,
            self._driver,
            self._rate,
            self._on_fetch_ended,
            self.wake,
        )
        await self._fetches.open(engine, self._make_receiver)
        return BothSides(self._fetches.receiver, self._sender)

    def close_transfers(self) -> None:
        self._fetches.receiver.close()

    async def on_stop(self) -> None:
        if self._transferring is not None:
            await self._fetches.close()
            await self._loans.close()
        await super().on_stop()

    async def give_up(self) -> None:
        self._step_events.deliver()
        await super().give_up()

    def worker_load(self) -> WorkerLoad:
        return WorkerLoad(
            capacity=self._driver.engine.config.max_sequences,
            live=len(self._book.jobs) - len(self._book.queue),
            kv_blocks_free=self._driver.snapshot.free_blocks,
            queued=len(self._book.queue),
            queued_tokens=self._book.uncomputed_tokens,
            tenant_queues=self._book.tenant_queues,
            due_tokens=self._book.due_tokens,
        )

    def fetch_report(self) -> FetchReport:
        return self._fetches.report()

    def _on_fetch_ended(self, job: PrefillJob) -> None:
        """The job waits for its prefix no longer, and may be shorter."""
        self._book.queue.shorten(job.entry())
        self._service.changed()

    def held(self) -> Iterable[Held]:
        for job in self._book.jobs.values():
            kind = "queued" if job.phase is JobPhase.QUEUED else "transfer"
            yield Held(job.request_id, kind, 1, job.phase.value)
        yield from self._fetches.receiver.held()
        yield from self._loans.held()
        yield from super().held()

    def holds_work(self) -> bool:
        return super().holds_work() or len(self._loans) > 0

    # ---- messages ---------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        self._step_events.deliver()  # a cancel should find its job where it is
        await super().on_message(delivery)

    async def on_work(self, delivery: Delivery) -> None:
        match delivery.message:
            case messages.Prefill() as prefill:
                await self._accept(delivery, prefill)
            case messages.GrammarTried() as tried:
                self._hear_verdict(delivery, tried)
            case messages.LendPrefix() as request:
                self._lend(delivery, request)
            case message:
                raise self.unknown(message)

    async def _accept(self, delivery: Delivery, prefill: messages.Prefill) -> None:
        """Into the queue, or a typed refusal at once; nothing here waits for the engine."""
        envelope, engine = delivery.envelope, self._driver.engine
        job = read_job(
            envelope,
            prefill,
            self.bus.deadline_of(envelope),
            self.bus.deadline_at(prefill.first_token_us, envelope.origin),
            vocab_size=engine.model_config.vocab_size,
            max_model_len=engine.max_model_len,
            now_s=SYSTEM_CLOCK.monotonic_s(),
        )
        await self.replace_earlier(job, delivery.sender)
        if job.key not in self._book.jobs:
            known = self._mirror.overlap_blocks(job.spec.block_hashes[: job.max_reusable_blocks])
            job.cached_tokens = known * BLOCK_TOKENS
            self.take_in(job, prefill.adapter, lambda: self._book.add(job, self._rate.tokens_per_s))
            self._hear_early_verdict(job)
            self._fetches.begin(job, prefill.lender)
            engine.serve(self._book.waiting_prompts)
            self._service.changed()
        await self.bus.reply(envelope, Accepted(self._book.jobs[job.key].cached_tokens))

    def _lend(self, delivery: Delivery, request: messages.LendPrefix) -> None:
        if self._service.stopping.is_set():
            raise Overloaded("this worker is draining; compute the prefix")
        self._loans.lend(delivery, request)

    def is_tried_elsewhere(self, job: PrefillJob) -> bool:
        """The decode worker of the same route tries it."""
        return self._service.fleet.get("decode", job.peer) is not None

    def _hear_verdict(self, delivery: Delivery, tried: messages.GrammarTried) -> None:
        """Believe the decode worker of the route alone. Raises ProtocolError for a time that is none."""
        if tried.took_us < 0:
            raise ProtocolError(f"a grammar cannot have taken {tried.took_us} us to compile")
        key = sequence_key(delivery.envelope.request_id, delivery.envelope.epoch)
        verdict = tried.refusal[: InvalidRequest.max_chars] or tried.took_us / 1e6
        job = self._book.jobs.get(key)
        if job is None:
            self._early_verdicts.put((key, delivery.sender), verdict, SYSTEM_CLOCK.monotonic_s())
        elif delivery.sender in ("", job.peer):
            self._grammar_compiler.hear(key, verdict)
        else:
            metrics.DROPPED_MESSAGES.labels(reason="foreign_verdict").inc()

    def _hear_early_verdict(self, job: PrefillJob) -> None:
        """The decode worker may have heard of the route before, and have known the grammar."""
        for sender in (job.peer, ""):
            verdict = self._early_verdicts.pop((job.key, sender))
            if verdict is not None:
                self._grammar_compiler.hear(job.key, verdict)

    def is_computing(self) -> bool:
        """Return whether the job needs the engine; one on its way to decode does not."""
        return any(job.phase in IN_ENGINE for job in self._book.jobs.values())

    async def on_tick(self) -> None:
        """Look at jobs that wait or are being sent; those that are computed are looked at between two
        steps."""
        await super().on_tick()
        self._early_verdicts.forget(SYSTEM_CLOCK.monotonic_s())
        for job in self._book.expired_at_work():
            if job.phase is JobPhase.TRANSFERRING:
                await self._lose(job, self.deadline_passed(job))
        await self._report_expired(self._book.expired_in_queue())

    # ---- one turn -----------------------------------------------------------------------------------

    async def after_step(self, result: StepResult) -> None:
        self._rate.observe(result.num_prefill_tokens, result.step_us)
        metrics.MASK_WAITS.inc(result.mask_waits)
        cost = StepCost.of(result, self._driver.engine)
        record_progress(self._book.jobs, result, cost)
        outputs = [
            (job, output)
            for output in result.outputs
            if (job := self._book.jobs.get(output.key)) is not None and job.phase in IN_ENGINE
        ]
        first_tokens = [(job, output) for job, output in outputs if output.fault is None]
        for scores in result.prompt_scores:
            await self._send_scores(scores)
        # The first token goes out before KvDone: time to first token never waits for the transfer.
        await self._outbox.tokens(
            job_output(job, output, SYSTEM_CLOCK.monotonic_s(), self._driver.kv_bytes(job.key), cost.unit)
            for job, output in first_tokens
        )
        if first_tokens:
            await asyncio.sleep(0)  # they leave now, not behind what follows from here on
        self._step_events.deliver()
        await self._report_refused()
        for job, output in outputs:
            if output.fault is not None:
                await self._lose(job, output.fault)
        for job, output in first_tokens:
            job.phase = JobPhase.TRANSFERRING
            self._sender.finish_transfer(job.transfer_key, output.token_ids, output.finish_reason or "")

    async def _send_scores(self, scores: PromptScores) -> None:
        job = self._book.jobs.get(scores.key)
        if job is not None and job.phase in IN_ENGINE:
            await self._outbox.prompt_scores(job.gateway, job.request_id, job.epoch, scores)

    async def admit_jobs(self) -> None:
        """Fill the next chunk with the most urgent prompts."""
        self._driver.engine.serve(self._book.waiting_prompts)
        room = self._driver.room_tokens(self._book.computing_tokens, self._book.prompts_ahead)
        jobs, expired = self._book.take_jobs(room)
        await self._report_expired(expired)
        for job in jobs:
            job.started_s = SYSTEM_CLOCK.monotonic_s()
        callbacks = [self._announcer.layer_callback(job) for job in jobs]
        if any(job.refused_s is not None for job in jobs):  # a step for nothing would only wake the next one
            self._joined(jobs, await self._driver.admit(jobs, callbacks))
            await self._report_refused()
        elif jobs:
            self._driver.join(jobs, callbacks, self._joined)

    def _joined(self, jobs: Sequence[PrefillJob], admitted: Sequence[AdmitResult | PenstockError]) -> None:
        """The engine has them or not; who has ended since does not need it any more."""
        for job, result in zip(jobs, admitted, strict=True):
            if self._book.jobs.get(job.key) is not job:
                self._driver.release_later(job.key)
                continue
            if isinstance(result, Overloaded):  # blocks are still on their way out; they come back
                self._book.put_back(job)
                continue
            try:
                if isinstance(result, PenstockError):
                    raise result
                job.phase = JobPhase.COMPUTING
                job.cached_tokens = result.cached_tokens
                self._announcer.offer(job, result)
            except PenstockError as error:
                self._refused.append((job, error))
                self._end(job)
            else:
                metrics.PREFIX_CACHE_QUERIES.inc(job.num_tokens // BLOCK_TOKENS)
                metrics.PREFIX_CACHE_HITS.inc(job.cached_tokens // BLOCK_TOKENS)
        self._service.changed()

    async def _report_refused(self) -> None:
        refused, self._refused = self._refused, []
        for job, error in refused:
            await self._report_lost(job, error)

    async def take_steps(self) -> bool:
        if self._driver.stepping:
            result = self._driver.take_result()
            if result is None:
                self._driver.end_wait(for_others=bool(self._book.queue))
                return False
            await self.after_step(result)
        return True

    async def step_on(self) -> None:
        computing = bool(self._book.in_phase(JobPhase.COMPUTING))
        await self._driver.step_on(self._step_events, computing=computing)

    # ---- KV, called by the sender from anywhere on the loop ------------------------------------------

    def _on_released(self, key: TransferKey) -> None:
        if self._loans.end(key):
            return
        self._ended_transfers.append((key, None))
        self.wake()

    def _on_failed(self, key: TransferKey, error: PenstockError) -> None:
        self._ended_transfers.append((key, error))
        self.wake()

    async def end_transfers(self) -> None:
        while self._ended_transfers:
            key, error = self._ended_transfers.popleft()
            job = self._book.jobs.get(sequence_key(*key))
            if job is None:
                continue
            if error is None:
                self._end(job)
            else:
                await self._lose(job, error)

    # ---- ends -----------------------------------------------------------------------------------------

    def _end(self, job: PrefillJob) -> None:
        """Nobody reads the job's blocks any more: give everything back."""
        self._book.remove(job.key)
        self._driver.release_later(job.key)
        self._service.changed()

    def release_job(self, job: PrefillJob, reason: str) -> None:
        if job.phase is JobPhase.QUEUED:
            self._fetches.cancel(job)
            self._book.remove(job.key)
        elif job.phase is JobPhase.COMPUTING:
            # Released before the transfer's end is acknowledged: an aborted transfer never becomes visible.
            job.phase = JobPhase.STOPPING
            self._driver.release_later(job.key)
            self._sender.abort_transfer(job.transfer_key, reason)
        elif job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING
            self._sender.abort_transfer(job.transfer_key, reason)
        self.wake()

    def deadline_passed(self, job: PrefillJob) -> DeadlineExpired:
        return deadline_passed(f"while prefill was {job.phase.value}")

    async def _report_expired(self, expired: Iterable[LostJob]) -> None:
        for job, error in expired:
            self._fetches.cancel(job)
            self.forget_grammar(job)
            await self._report_lost(job, error)
