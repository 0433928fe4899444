"""The decode worker: reservation → KV → batch → tokens; of prompts that it computes itself, prompt → tokens.

A turn admits jobs between steps, begins the next step with the drafts that have arrived, and then tells the
speculators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.decode.admission import DecodeAdmission
from services.decode.book import DecodeBook
from services.decode.config import DecodeConfig
from services.decode.departures import Departures, MakeHandOverSender
from services.decode.drafting import Drafting
from services.decode.driver import DecodeDriver
from services.decode.job import DecodeJob, expiry_of, read_job
from services.decode.job_ends import JobEnds
from services.decode.kv_arrivals import KvArrivals
from services.decode.pace import DecodePace
from services.decode.parked_streams import PARKED_FOR, ParkedStreams
from services.decode.step_results import StepResults
from services.decode.verdicts import VerdictsToTell
from shared import messages
from shared.bus import Delivery
from shared.engine import BLOCK_TOKENS, Engine
from shared.engine.sampling.grammar_verdicts import Verdict
from shared.engine.scheduling.step_limits import AWAITED_SHARE
from shared.errors import DeadlineExpired, PenstockError, StaleEpoch, StreamLost, StreamTakenOver
from shared.kv.both_sides import BothSides, MakeReceiver
from shared.messages import DecodeReport, Held
from shared.process.service import Service
from shared.sampling.defaults import SamplingDefault
from shared.seams.clock import SYSTEM_CLOCK
from shared.worker.adapters import WorkerAdapters
from shared.worker.gateway_leases import gateway_alive
from shared.worker.job import JobPhase
from shared.worker.job_book import WorkerLoad
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.worker_actor import Transfers, WorkerActor


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
        self._drafting = Drafting(service, self._driver, self._outbox)
        self._parked = ParkedStreams()
        self._verdicts = VerdictsToTell(self._outbox)

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
        self._ends = JobEnds(self._book, self._driver, self._drafting, self._parked, self._on_end)
        self._arrivals = KvArrivals(self._book, self._pace, self._ends, self._service.fleet, self.wake)
        await self._arrivals.open(engine, self._make_receiver)
        self._departures = Departures(
            self._service.config.hand_overs,
            self.bus,
            self._outbox,
            self._book,
            self._driver,
            self._ends,
            self._lose_left,
            self.wake,
        )
        self._hand_overs = self._departures.hand_overs
        self._departures.open(engine, self._make_sender)
        self._admission = DecodeAdmission(
            self.bus, self._book, self._driver, self._arrivals, self._drafting, self._ends, self._lose
        )
        self._results = StepResults(
            self._book,
            self._outbox,
            self._driver,
            self._drafting,
            self._hand_overs,
            self._ends,
            self._pace,
            self._rate,
            self._lose,
        )
        return BothSides(self._arrivals.receiver, self._hand_overs.sender)

    def close_transfers(self) -> None:
        self._arrivals.receiver.close()

    async def drained(self) -> None:
        self.wake()  # for the first hand-overs
        await super().drained()

    async def give_up(self) -> None:
        await super().give_up()
        await self._drafting.send()

    def worker_load(self) -> WorkerLoad:
        return self._book.load

    def decode_report(self) -> DecodeReport:
        pace = self._pace
        return DecodeReport(
            pace.plain_step_us,
            pace.prompt_tokens_per_s,
            pace.transfer_us,
            self._default_sampling,
            guests=self._driver.engine.config.guest_sequences,
            tenants=self._book.tenants,
            longest_step_us=self._longest_step_us,
        )

    @property
    def _longest_step_us(self) -> int:
        """Return how long steps may be for the streams here, so that prompts have their first tokens in time;
        0 where there are none."""
        plain_us = self._pace.plain_step_us
        if not plain_us:
            return 0
        config: DecodeConfig = self._service.config
        spare_us = 1e6 * AWAITED_SHARE * self._book.shortest_wait_s(config.itl_target_ms / 1000)
        longest_us = max(config.max_step_ratio * plain_us, spare_us)
        return round(min(longest_us, 1000 * config.max_step_ms or longest_us))

    def held(self) -> Iterable[Held]:
        yield from self._book.held()
        yield from self._arrivals.receiver.held()
        yield from self._drafting.held()
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
                self._drafting.receive(block, delivery.sender)
            case messages.DraftResync(request_ids, epochs):
                self._drafting.book.resync(request_ids, epochs)
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
            first_token=self.bus.deadline_at(reserve.first_token_us, envelope.origin),
            thinking=self.bus.deadline_at(reserve.thinking_us, envelope.origin),
        )
        self._book.check_pace(job, self._pace.step_s)
        await self.replace_earlier(job, delivery.sender)
        if job.key in self._book.jobs:
            raise StaleEpoch("this route of the request is here already")
        self.take_in(job, reserve.adapter, lambda: self._book.add(job))
        self._departures.forget_earlier(job)
        if job.is_local:
            job.arrived_s = SYSTEM_CLOCK.monotonic_s()
            known = self._mirror.overlap_blocks(job.spec.block_hashes[: job.max_reusable_blocks])
            job.computed_tokens = known * BLOCK_TOKENS
            self._service.changed()
            if job.compiling:
                await self._admission.answer_taken(job)

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
            self._ends.park(job, finished=False)
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

    def on_grammar_tried(self, key: str, verdict: Verdict) -> None:
        self._verdicts.add(key, verdict)
        self.wake()

    async def tell_verdicts(self) -> None:
        await self._verdicts.tell(self._book)

    def is_computing(self) -> bool:
        """Streams would get slower by it."""
        return bool(self._book.jobs)

    async def on_tick(self) -> None:
        await super().on_tick()
        self._parked.expire()
        self._drafting.follow_level()
        self._arrivals.note_draws()
        self._hand_overs.halt_outgrown()

    async def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        """A lost speculator costs only speed."""
        await super().on_instance_lost(role, instance, why)
        if role == "speculator":
            self._drafting.book.lose(instance)

    # ---- one turn -----------------------------------------------------------------------------------

    async def take_steps(self) -> bool:
        """Handle the driver's reports, though not while the bus takes nothing and too much waits for it: then
        the engine soon waits as well, and no token is lost."""
        while not self._outbox.crowded and (report := self._driver.take_report()) is not None:
            for admitted in report.admitted:
                await self._admission.take_answer(admitted)
            if report.admitted:
                self._service.changed()
            for loaned in report.loans:
                for job in self._hand_overs.take_loan(loaned.key, loaned.outcome):
                    self._drafting.book.close_draft(job.key)
            self._drafting.record_uses(report.draft_uses)
            if report.result is not None:
                await self._results.take(report.result)
        return True

    async def admit_jobs(self) -> None:
        """Let jobs join the engine; of a worker that drains, let those that run leave it."""
        self._departures.begin(draining=self._service.stopping.is_set())
        self._admission.ask_engine()

    async def step_on(self) -> None:
        self._driver.propose(self._drafting.book.proposals())
        for job in self._book.take_overdue_thinking():
            self._driver.close_thinking(job.key)
        await self._driver.step_on()

    async def after_begin(self) -> None:
        await self._drafting.send()

    async def end_transfers(self) -> None:
        while self._arrivals.failed:
            await self._report_lost(*self._arrivals.failed.popleft())
        await self._departures.end_left()

    async def _lose_left(self, job: DecodeJob, error: PenstockError) -> None:
        await self._report_lost(job, error)
        if job.phase is not JobPhase.STOPPING:
            self._release(job, error.code)

    def _on_end(self) -> None:
        self._service.changed()
        self.wake()

    def release_job(self, job: DecodeJob, reason: str) -> None:
        self._ends.park_interrupted(job, reason)
        if job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING  # until no late KV can land in its blocks
            self._arrivals.receiver.abort_transfer(job.transfer_key, reason)
        elif self._hand_overs.holds_blocks(job):
            job.phase = JobPhase.STOPPING  # until nobody reads its blocks
            self._hand_overs.end(job, reason=reason)
        elif job.phase is not JobPhase.STOPPING:
            self._hand_overs.end(job, reason=reason)
            self._ends.end(job)

    async def answer_pending(self, job: DecodeJob, error: PenstockError) -> bool:
        return await self._admission.refuse(job, error)

    def deadline_passed(self, job: DecodeJob) -> DeadlineExpired:
        return expiry_of(job)
