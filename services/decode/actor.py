"""The decode worker: reservation → KV → batch → tokens; of prompts that it computes itself, prompt → tokens.

A turn admits jobs between steps, begins the next step with the drafts that have arrived, and then tells the
speculators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from services.decode.book import DecodeBook
from services.decode.config import DecodeConfig
from services.decode.drafts import DraftBook, longest_at
from services.decode.driver import DecodeDriver
from services.decode.hand_overs import HandOvers
from services.decode.job import DecodeJob, read_job
from services.decode.output import draft_counts, job_output
from services.decode.pace import DecodePace
from services.decode.parked_streams import PARKED_FOR, ParkedStream, ParkedStreams
from services.decode.transfers import DecodeTransfers
from shared import messages
from shared.bus import Delivery
from shared.bus.subjects import inbox
from shared.degradation import DegradationLevel
from shared.engine import BLOCK_TOKENS, AdmitResult, Engine, Reservation, StepResult, TokenOutput
from shared.engine.sampling.grammar_verdicts import Verdict
from shared.errors import (
    DeadlineExpired,
    Overloaded,
    PenstockError,
    StaleEpoch,
    StreamLost,
    StreamTakenOver,
)
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased, OnSent, TransferKey
from shared.messages import Accepted, DecodeReport, Held
from shared.process.service import Service
from shared.sampling.defaults import SamplingDefault
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.adapters import WorkerAdapters
from shared.worker.engine_actor import WorkerLoad
from shared.worker.gateway_leases import gateway_alive
from shared.worker.job import JobPhase
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.prompt_progress import record_progress
from shared.worker.wire import sequence_key
from shared.worker.worker_actor import Transfers, WorkerActor

IN_BATCH = (JobPhase.COMPUTING, JobPhase.DECODING)
"""The phases of a job that a step was about."""
ON_THE_WAY = (JobPhase.QUEUED, JobPhase.COMPUTING, JobPhase.TRANSFERRING)
"""The phases of a job that has no token here yet, and that soon has a place in the batch."""
UNKNOWN_PREFILL_RETRY_MS = 250  # a heartbeat later a prefill worker that has just started is known

HAND_OVER_ASK_S = 5.0
"""The longest time for which a gateway looks for a worker that takes a request over."""

MakeReceiver = Callable[[Engine, OnComplete, OnFailed, OnReleased], KvReceiver]
MakeHandOverSender = Callable[[Engine, OnReleased, OnFailed, OnSent], KvSender]


class DecodeActor(WorkerActor[DecodeJob]):
    """Owns the engine, the running batch, the KV receiver and the draft sessions."""

    kv_messages = (
        messages.KvReady,
        messages.KvDone,
        messages.KvGrant,
        messages.KvCredit,
        messages.KvMissing,
        messages.KvReceived,
        messages.KvAbort,
        messages.KvAbortAck,
    )
    peer_role = "prefill"

    _driver: DecodeDriver
    _book: DecodeBook

    def __init__(
        self,
        service: Service[DecodeConfig],
        load: Callable[[], Engine],
        make_receiver: MakeReceiver,
        make_sender: MakeHandOverSender,
        mirror: PrefixMirror,
        adapters: WorkerAdapters | None = None,
        default_sampling: tuple[SamplingDefault, ...] = (),
    ) -> None:
        super().__init__(service, DecodeDriver("decode-engine", load, mirror, self.wake), mirror, adapters)
        self._make_receiver = make_receiver
        self._make_sender = make_sender
        self._default_sampling = default_sampling
        self._drafts = DraftBook(
            service.instance, service.config.draft_tokens, service.config.draft_batch_tokens
        )
        self._failures: deque[tuple[DecodeJob, PenstockError]] = deque()
        self._parked = ParkedStreams()
        self._late_counted = 0
        self._verdicts: deque[tuple[str, Verdict]] = deque()
        """Verdicts on grammars by the keys of jobs, for their prefill workers."""

    async def open_transfers(self) -> Transfers:
        engine = self._driver.engine
        self._book = DecodeBook(
            max_jobs=engine.config.max_sequences,
            max_guests=engine.config.guest_sequences,
            kv_blocks=engine.config.kv_blocks,
            is_alive=gateway_alive(self._service.fleet),
            groups=engine.layout.groups.counts,
            chunk_tokens=engine.config.max_batch_tokens,
        )
        self._pace = DecodePace(engine.config.max_batch_tokens)
        self._receiver = self._make_receiver(engine, self._on_complete, self._on_failed, self._on_released)
        await self._receiver.start()
        self._hand_overs = HandOvers(
            self._service.config.hand_overs, self._driver, self._ask_for_successor, self.wake
        )
        sender = self._make_sender(
            engine, self._on_left, self._hand_overs.on_failed, self._hand_overs.on_sent
        )
        self._hand_overs.sender = sender
        return DecodeTransfers(self._receiver, sender)

    def close_transfers(self) -> None:
        self._receiver.close()

    async def drained(self) -> None:
        self.wake()  # for the first hand-overs
        await super().drained()

    async def give_up(self) -> None:
        await super().give_up()
        await self._send_drafts()

    def worker_load(self) -> WorkerLoad:
        return WorkerLoad(
            capacity=self._driver.engine.config.max_sequences,
            live=len(self._book.jobs),
            kv_blocks_free=self._book.free_blocks,
            queued=sum(job.phase in ON_THE_WAY for job in self._book.jobs.values()),
            queued_tokens=sum(job.uncomputed_tokens for job in self._book.jobs.values()),
        )

    def decode_report(self) -> DecodeReport:
        pace = self._pace
        return DecodeReport(
            pace.plain_step_us,
            pace.prompt_tokens_per_s,
            pace.transfer_us,
            self._default_sampling,
            guests=self._driver.engine.config.guest_sequences,
            tenants=self._book.tenants,
        )

    def held(self) -> Iterable[Held]:
        yield from self._book.held()
        yield from self._receiver.held()
        yield from (Held(request_id, "draft", 1, "") for request_id, _ in self._drafts.held())
        yield from self._parked.held()
        yield from super().held()

    # ---- messages ---------------------------------------------------------------------------------

    async def on_work(self, delivery: Delivery) -> None:
        match delivery.message:
            case messages.Reserve() as reserve:
                await self._accept(delivery, reserve)
            case messages.TakeOver(tenant):
                await self._give_stream(delivery, tenant)
            case messages.DraftBlock() as block:
                self._drafts.receive(block)
            case messages.DraftResync(request_ids, epochs):
                self._drafts.resync(request_ids, epochs)
            case message:
                raise self.unknown(message)

    async def _accept(self, delivery: Delivery, reserve: messages.Reserve) -> None:
        """Refuse at once, or count it in; the answer follows when the engine has made the reservation, or has
        the prompt. It does not wait for the grammar of a prompt that is to be computed here."""
        envelope, engine = delivery.envelope, self._driver.engine
        job = read_job(
            envelope,
            reserve,
            self.bus.deadline_of(envelope),
            vocab_size=engine.model_config.vocab_size,
            max_model_len=engine.max_model_len,
        )
        self._book.check_pace(job, self._pace.step_s)
        await self.replace_earlier(job, delivery.sender)
        if job.key in self._book.jobs:
            raise StaleEpoch("this route of the request is here already")
        self.take_in(job, reserve.adapter, lambda: self._book.add(job))
        if job.is_local:
            job.arrived_s = SYSTEM_CLOCK.monotonic_s()
            known = self._mirror.overlap_blocks(job.spec.block_hashes[: job.max_reusable_blocks])
            job.computed_tokens = known * BLOCK_TOKENS
            self._service.changed()
            if job.compiling:
                await self._answer_taken(job)

    # ---- streams that another gateway goes on with --------------------------------------------------

    async def _give_stream(self, delivery: Delivery, tenant: str) -> None:
        """Give the stream to whoever asks, and end the work for the gateway that placed it."""
        request_id = delivery.envelope.request_id
        running = [
            job
            for job in self._book.of_request(request_id)
            if job.resumable and job.share.tenant == tenant and job.phase is not JobPhase.STOPPING
        ]
        for job in running:
            self._parked.keep(request_id, ParkedStream.of(job, finished=False))
            await self._lose(job, StreamTakenOver("another call goes on with this stream", hop="decode"))
        stream = self._parked.take(request_id, tenant)
        if stream is None:
            raise StreamLost("this worker has no such stream: send the request again", hop="decode")
        await self.bus.answer(delivery.envelope, stream.handed_over())

    async def _cancel(self, delivery: Delivery, reason: str) -> None:
        """A stream that waits for another gateway is forgotten too, unless that is what it waits for."""
        envelope = delivery.envelope
        if reason not in PARKED_FOR:
            self._parked.drop(envelope.request_id, envelope.epoch, delivery.sender)
        await super()._cancel(delivery, reason)

    async def _answer_taken(self, job: DecodeJob) -> None:
        """Once: its prompt will be computed here."""
        if not job.answered:
            job.answered = True
            await self.bus.answer(job.envelope, Accepted(job.computed_tokens))

    def on_grammar_tried(self, key: str, verdict: Verdict) -> None:
        self._verdicts.append((key, verdict))
        self.wake()

    async def tell_verdicts(self) -> None:
        """A grammar is tried once, and here: whoever computes its prompt compiles it on our word, and nobody
        has to be believed where the streams are."""
        while self._verdicts:
            key, verdict = self._verdicts.popleft()
            job = self._book.jobs.get(key)
            if job is not None and not job.is_local and not job.is_handed_over:
                took_us, refusal = (0, verdict) if isinstance(verdict, str) else (round(verdict * 1e6), "")
                told = messages.GrammarTried(took_us, refusal)
                await self._outbox.tell("prefill", job.peer, told, job.request_id, job.epoch)

    def is_computing(self) -> bool:
        """Streams would get slower by it."""
        return bool(self._book.jobs)

    async def on_tick(self) -> None:
        await super().on_tick()
        self._parked.expire()
        self._leave_out(self._told_level())
        for job in self._book.in_phase(JobPhase.TRANSFERRING):
            job.last_token_s = self._receiver.sampled_s(job.transfer_key)
        self._hand_overs.halt_outgrown()

    def _told_level(self) -> DegradationLevel:
        """Return the highest level that gateways tell of the model that is served here."""
        gateways = self._service.fleet.instances("gateway")
        told = [each for view in gateways for each in view.heartbeat.gateway.model_levels]
        if not told:
            return DegradationLevel.NONE
        own = self._service.heartbeat()
        ours = (each for each in told if (each.model, each.weights_digest) == (own.model, own.weights_digest))
        return max((DegradationLevel.heard(each.level) for each in ours), default=DegradationLevel.NONE)

    def _leave_out(self, level: DegradationLevel) -> None:
        if level is not self._drafts.level:
            self._drafts.level = level
            self._driver.limit_ngrams(longest_at(level, self._driver.engine.config.ngram_tokens))

    async def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        """A lost speculator costs only speed."""
        await super().on_instance_lost(role, instance, why)
        if role == "speculator":
            self._drafts.lose(instance)

    # ---- one turn -----------------------------------------------------------------------------------

    async def after_step(self, result: StepResult) -> None:
        """A job that failed ("error") tells so with its last tokens, and so behind them; like every finished
        job it holds nothing here any more. One whose grammar failed says what is wrong with that."""
        record_progress(self._book.jobs, result)
        await self._send_scores(result)
        outputs = [
            (job, output)
            for output in result.outputs
            if (job := self._book.jobs.get(output.key)) is not None and job.phase in IN_BATCH
        ]
        faults = [(job, output.fault) for job, output in outputs if output.fault is not None]
        outputs = [(job, output) for job, output in outputs if output.fault is None]
        now_s = SYSTEM_CLOCK.monotonic_s()
        await self._outbox.tokens(job_output(job, output, now_s) for job, output in outputs)
        for job, output in outputs:
            job.last_token_s = now_s
            if output.finish_reason is not None:
                self._hand_overs.end(job, finish=output.finish_reason)
                self._end_finished(job)
                continue
            if job.phase is JobPhase.COMPUTING:
                job.phase = JobPhase.DECODING
                self._open_draft(job)
            self._book.grow(job)
            drafted = not output.looked_up
            self._drafts.advance(
                output.key,
                output.token_ids,
                output.proposed_drafts * drafted,
                output.accepted_drafts * drafted,
            )
        for job, fault in faults:
            await self._lose(job, fault)
        self._count_drafts([output for _, output in outputs if output.proposed_drafts])
        if result.batch_tokens:  # else draws that had waited for masks
            self._rate.observe(sum(len(output.token_ids) for _, output in outputs), result.step_us)
        self._pace.observe_step(result)
        metrics.PREEMPTIONS.inc(len(result.preempted_keys))
        metrics.MASK_WAITS.inc(result.mask_waits)
        metrics.RESTS.inc(result.num_resting)
        if not self._book.in_phase(JobPhase.DECODING):
            self._pace.forget_steps()

    def _count_drafts(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            source = "lookup" if output.looked_up else "speculator"
            metrics.DRAFT_PROPOSED.labels(source=source).inc(output.proposed_drafts)
            metrics.DRAFT_ACCEPTED.labels(source=source).inc(output.accepted_drafts)

    async def _send_scores(self, result: StepResult) -> None:
        for scores in result.prompt_scores:
            job = self._book.jobs.get(scores.key)
            if job is not None and job.phase in IN_BATCH:
                await self._outbox.prompt_scores(job.gateway, job.request_id, job.epoch, scores)

    async def take_steps(self) -> bool:
        """Handle the driver's reports, though not while the bus takes nothing and too much waits for it: then
        the engine soon waits as well, and no token is lost."""
        while not self._outbox.crowded and (report := self._driver.take_report()) is not None:
            for admitted in report.admitted:
                await self._admitted(admitted.job, admitted.outcome)
            for loaned in report.loans:
                for job in self._hand_overs.take_loan(loaned.key, loaned.outcome):
                    self._drafts.close_draft(job.key)
            for use in report.draft_uses:
                self._drafts.record_use(use.key, use.behind, use.late)
            if report.result is not None:
                await self.after_step(report.result)
        return True

    async def admit_jobs(self) -> None:
        """Let jobs join the engine; of a worker that drains, let those that run leave it."""
        if self._service.stopping.is_set():
            self._hand_overs.begin(self._book.in_phase(JobPhase.DECODING))
        queued = self._book.in_phase(JobPhase.QUEUED)
        new = [job for job in queued if not (job.admitting or job.waits_for_grammar)]
        ready = [job for job in self._book.in_phase(JobPhase.READY) if not (job.admitting or job.compiling)]
        if new or ready:
            self._driver.admit(new, ready)
            for job in (*new, *ready):
                job.admitting = True

    async def _admitted(
        self, job: DecodeJob, outcome: Reservation | AdmitResult | PenstockError | None
    ) -> None:
        """The engine has answered; of a job that has ended meanwhile it has been told to give back all."""
        job.admitting = False
        if self._book.jobs.get(job.key) is not job:
            return
        if isinstance(outcome, PenstockError):
            await self._lose(job, outcome)
        elif isinstance(outcome, Reservation):
            await self._reserved(job, outcome)
        elif isinstance(outcome, AdmitResult):
            await self._begun(job, outcome)
        else:
            job.phase = JobPhase.DECODING
            job.queue_us = max(0, round((SYSTEM_CLOCK.monotonic_s() - job.ready_s) * 1e6))
            if job.is_handed_over:
                metrics.HAND_OVER_SECONDS.observe((job.transfer_us + job.queue_us) / 1e6)
            self._open_draft(job)
        self._service.changed()

    def _open_draft(self, job: DecodeJob) -> None:
        self._drafts.open_draft(
            job.request_id,
            job.epoch,
            job.speculator,
            job.token_ids,
            job.spec.prompt_len,
            job.spec.params,
            adapter=job.adapter_name,
        )

    async def _begun(self, job: DecodeJob, admitted: AdmitResult) -> None:
        """The engine has the prompt, and computes it beside the streams that run."""
        job.phase = JobPhase.COMPUTING
        job.started_s = SYSTEM_CLOCK.monotonic_s()
        job.computed_tokens = admitted.cached_tokens
        metrics.PREFIX_CACHE_QUERIES.inc(len(job.spec.token_ids) // BLOCK_TOKENS)
        metrics.PREFIX_CACHE_HITS.inc(admitted.cached_tokens // BLOCK_TOKENS)
        await self._answer_taken(job)

    async def _reserved(self, job: DecodeJob, reserved: Reservation) -> None:
        """The blocks are there: let KV come, and say so to whoever asked."""
        try:
            self._expect_kv(job, reserved)
        except PenstockError as error:
            self._end(job)
            await self.bus.answer(job.envelope, error, hop="decode")
        else:
            job.answered = True
            await self.bus.answer(job.envelope, Accepted(reserved.num_cached_blocks * BLOCK_TOKENS))

    def _expect_kv(self, job: DecodeJob, reserved: Reservation) -> None:
        incarnation = self._peer_incarnation(job)
        metrics.PREFIX_CACHE_QUERIES.inc(len(job.spec.block_hashes))
        metrics.PREFIX_CACHE_HITS.inc(reserved.num_cached_blocks)
        job.phase = JobPhase.TRANSFERRING
        self._receiver.expect_transfer(
            job.request_id,
            job.epoch,
            job.gateway,
            job.peer,
            incarnation,
            reserved.tables,
            reserved.first_blocks,
            job.deadline,
            sender_role=job.peer_role,
            filled_tokens=job.arriving_tokens if job.is_handed_over else None,
        )

    def _peer_incarnation(self, job: DecodeJob) -> int:
        """The life of the worker that KV comes from. Raises Overloaded for a prefill worker that is not
        known."""
        if job.is_handed_over:
            return job.peer_incarnation
        prefill = self._service.fleet.get("prefill", job.peer)
        if prefill is None:
            raise Overloaded(
                f"prefill worker {job.peer} is not known here; try again or use another one",
                retry_after_ms=UNKNOWN_PREFILL_RETRY_MS,
            )
        return prefill.heartbeat.incarnation

    async def step_on(self) -> None:
        self._driver.propose(self._drafts.proposals())
        await self._driver.step_on()

    async def after_begin(self) -> None:
        await self._send_drafts()

    async def _send_drafts(self) -> None:
        for speculator, request_id, epoch, message in self._drafts.outgoing():
            await self._outbox.tell("speculator", speculator, message, request_id, epoch)
        late = self._drafts.counts.late
        metrics.DRAFT_LATE.inc(late - self._late_counted)
        self._late_counted = late

    # ---- KV, called by the receiver from anywhere on the loop --------------------------------------

    def _on_complete(
        self, key: TransferKey, token_ids: tuple[int, ...], finish: str, exposed_us: int
    ) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is None or job.phase is not JobPhase.TRANSFERRING:
            return
        job.first_tokens = token_ids
        if finish:  # the first token was the last
            if job.is_handed_over:  # who has the whole of it keeps it
                self._end(job)
            else:
                self._end_finished(job)
            return
        job.phase = JobPhase.READY
        job.transfer_us = exposed_us
        if not job.is_handed_over:
            self._pace.observe_transfer(exposed_us)
        job.ready_s = SYSTEM_CLOCK.monotonic_s()
        job.last_token_s = job.ready_s - exposed_us / 1e6
        self.wake()

    def _on_failed(self, key: TransferKey, error: PenstockError) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None and job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING
            self._failures.append((job, error))
            self.wake()

    def _on_released(self, key: TransferKey) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None:
            self._end(job)

    def _on_left(self, key: TransferKey) -> None:
        """Nobody reads KV of a job any more that was to be handed over."""
        self._hand_overs.on_released(key)
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None and job.phase is JobPhase.STOPPING:
            self._end(job)

    async def end_transfers(self) -> None:
        while self._failures:
            await self._report_lost(*self._failures.popleft())
        self._hand_overs.take_answers()
        while self._hand_overs.ended:
            job, successor = self._hand_overs.ended.popleft()
            told = messages.HandOverDone(successor, draft_counts(job))
            await self._outbox.tell("gateway", job.gateway, told, job.request_id, job.epoch)
            self._end(job)
        while self._hand_overs.lost:
            job, error = self._hand_overs.lost.popleft()
            await self._report_lost(job, error)
            if job.phase is not JobPhase.STOPPING:
                self._release(job, error.code)

    async def _ask_for_successor(self, job: DecodeJob, position: int) -> messages.Message:
        envelope = self.bus.envelope(job.request_id, job.epoch, job.deadline, job.gateway)
        return await self.bus.ask(
            inbox("gateway", job.gateway),
            messages.HandOver(position),
            envelope,
            job.deadline.shrink(HAND_OVER_ASK_S),
        )

    # ---- ends -----------------------------------------------------------------------------------------

    def _end(self, job: DecodeJob) -> None:
        """Nothing can write into the job's blocks any more: give everything back."""
        self._drafts.close_draft(job.key)
        self._book.remove(job.key)
        self._driver.release_later(job.key)
        self._service.changed()
        self.wake()

    def _end_finished(self, job: DecodeJob) -> None:
        """Its last token is drawn; its gateway says when the client has it."""
        if job.resumable:
            self._parked.keep(job.request_id, ParkedStream.of(job, finished=True))
        self._end(job)

    def release_job(self, job: DecodeJob, reason: str) -> None:
        if job.resumable and reason in PARKED_FOR and job.phase is not JobPhase.STOPPING:
            self._parked.keep(job.request_id, ParkedStream.of(job, finished=False))
        if job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING  # until no late KV can land in its blocks
            self._receiver.abort_transfer(job.transfer_key, reason)
        elif self._hand_overs.holds_blocks(job):
            job.phase = JobPhase.STOPPING  # until nobody reads its blocks
            self._hand_overs.end(job, reason=reason)
        elif job.phase is not JobPhase.STOPPING:
            self._hand_overs.end(job, reason=reason)
            self._end(job)

    async def answer_pending(self, job: DecodeJob, error: PenstockError) -> bool:
        """The answer to Reserve says what became of a job that the engine has not been asked for."""
        if job.phase is not JobPhase.QUEUED or job.answered:
            return False
        job.answered = True
        await self.bus.answer(job.envelope, error, hop="decode")
        return True

    def deadline_passed(self, job: DecodeJob) -> DeadlineExpired:
        if not job.deadline.expired():
            return DeadlineExpired(
                f"no token came within the inter-token deadline while decode was {job.phase.value}, after "
                f"{job.num_outputs} tokens; allow more time from token to token",
                hop="decode",
            )
        return DeadlineExpired(
            f"the deadline passed while decode was {job.phase.value}, after {job.num_outputs} tokens; "
            "allow more time or ask for fewer tokens",
            hop="decode",
        )
