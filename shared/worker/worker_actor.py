"""A worker between the bus, an engine and KV transfers: what prefill and decode do alike.

One turn: the finished step's results, what has no time left, who joins, the next step. The step itself runs
in the engine's thread; messages are handled meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog

from shared import messages
from shared.bus import Delivery
from shared.engine.sampling.grammar_verdicts import Verdict
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    EngineFault,
    InternalError,
    InvalidRequest,
    Overloaded,
    PenstockError,
    Unavailable,
    UnknownMessage,
)
from shared.messages import WARM_EPOCH, AdapterId, CancelAck, Heartbeat, Held, HoldReport, Message
from shared.tasks import start_task
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled
from shared.worker.driver import EngineDriver
from shared.worker.engine_actor import EngineActor
from shared.worker.grammar_compiler import GrammarCompiler
from shared.worker.job import Job, JobPhase
from shared.worker.job_book import JobBook
from shared.worker.warming.prefix_warmer import PrefixWarmer
from shared.worker.wire import sequence_key

log = structlog.get_logger()

J = TypeVar("J", bound=Job)


class Transfers(Protocol):
    """A KvSender or a KvReceiver, as the actor that owns it sees it."""

    async def run_transfers(self) -> None: ...
    def handle_message(self, delivery: Delivery, /) -> bool: ...
    def peer_lost(self, instance: str, /) -> None: ...


class WorkerActor(EngineActor, Generic[J]):
    """Owns the engine, the jobs and one side of their KV transfers.

    A job ends in one of three ways: `_stop` (its session knows already), `_lose` (its session has to hear of
    it), or by itself. What it holds is given back by `release_job`, as its phase allows.
    """

    kv_messages: ClassVar[tuple[type[Message], ...]]
    """The messages of the other side about transfers."""
    peer_role: ClassVar[str]
    """The role at the other end of them."""

    _driver: EngineDriver[Any]
    _book: JobBook[J]  # from `open_transfers` on
    _transfers: Transfers
    _grammar_compiler: GrammarCompiler
    _warmer: PrefixWarmer
    _transferring: asyncio.Task[None] | None = None
    _idle: asyncio.Event

    # ---- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    async def open_transfers(self) -> Transfers:
        """Make the book and this side of the transfers; the engine is there."""

    def close_transfers(self) -> None:
        """Nothing may be written or read for a transfer any more."""

    @abstractmethod
    async def on_work(self, delivery: Delivery) -> None:
        """A message that is not common to all workers."""

    @abstractmethod
    async def end_transfers(self) -> None:
        """Act on what the transfers have told since the last turn."""

    @abstractmethod
    async def admit_jobs(self) -> None:
        """Let jobs join the engine, between two steps."""

    @abstractmethod
    def is_computing(self) -> bool:
        """Return whether there is anything better to compute than what may be asked for."""

    @abstractmethod
    async def take_steps(self) -> bool:
        """Act on what the engine has done since the last turn; False where the rest of the turn waits for
        the step that runs."""

    @abstractmethod
    async def step_on(self) -> None:
        """Let the engine go on."""

    async def after_begin(self) -> None:
        """Do what can wait until a step runs."""

    @abstractmethod
    def release_job(self, job: J, reason: str) -> None:
        """Give back what the job holds, as its phase allows; nothing happens to one that is STOPPING."""

    async def answer_pending(self, job: J, error: PenstockError) -> bool:  # noqa: ARG002 - a hook: where routes are answered at once, nobody waits
        """Return whether somebody still waited for the answer to the job's route; it is `error` now."""
        return False

    def is_tried_elsewhere(self, job: J) -> bool:  # noqa: ARG002 - a hook: most workers try for themselves
        """Return whether another worker tries the job's grammar, and says here what came of it."""
        return False

    def on_grammar_tried(self, key: str, verdict: Verdict) -> None:
        """Take note of what a job's grammar takes, or why it is refused, before it is compiled."""

    async def tell_verdicts(self) -> None:
        """Send what is known of grammars to whoever waits for it."""

    @abstractmethod
    def deadline_passed(self, job: J) -> DeadlineExpired:
        """The error of a job at work whose time is up."""

    # ---- life -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        await super().on_start()
        self._idle = asyncio.Event()
        self._warmer = PrefixWarmer(self._driver, self._mirror, self._adapters, self._service.changed)
        grammars = self._driver.engine.grammars
        self._grammar_compiler = GrammarCompiler(
            self._service.role, grammars, self.wake, self.on_grammar_tried
        )
        self._transfers = await self.open_transfers()
        self._transferring = start_task(self._transfers.run_transfers(), name="kv-transfers")
        self._transferring.add_done_callback(lambda _: self.wake())

    async def on_stop(self) -> None:
        """Every session that counted on this worker hears of its end, so that it can go elsewhere at once."""
        if self._transferring is not None:
            await self.give_up()
            await self._outbox.send_rest()
            self._transferring.cancel()
            await asyncio.gather(self._transferring, return_exceptions=True)
            self.close_transfers()
            await self._grammar_compiler.close()
        await super().on_stop()

    async def give_up(self) -> None:
        for job in list(self._book.jobs.values()):
            await self._lose(job, self._last_words(job))
        killer = self._warmer.failed_over
        if killer is not None:
            await self._outbox.lost(killer.gateway, killer.request_id, WARM_EPOCH, self._engine_fault())

    def _last_words(self, job: J) -> PenstockError:
        """Tell the session of each job that is here at the end; one that the engine failed over hears so."""
        role = self._service.role
        if self._stopping:
            return Unavailable(f"the {role} worker has stopped", hop=role)
        if self._driver.faulty and job.phase in (JobPhase.COMPUTING, JobPhase.DECODING):
            return self._engine_fault()
        return InternalError(f"the {role} worker failed; its log has the cause", hop=role)

    def _engine_fault(self) -> EngineFault:
        role = self._service.role
        return EngineFault(f"the {role} engine failed over this batch; its log has the cause", hop=role)

    async def drained(self) -> None:
        while self._driver.loaded and self.holds_work():
            self._idle.clear()
            await self._idle.wait()

    # ---- messages ---------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Messages of a transfer pass the mailbox by: their order matters, and transfers never wait."""
        if not isinstance(delivery.message, self.kv_messages):
            super().receive(delivery)
        elif self._transferring is not None:
            self._transfers.handle_message(delivery)
        else:
            role = self._service.role
            raise Unavailable(f"the {role} worker is starting", hop=role)

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case messages.Cancel(reason):
                await self._cancel(delivery, reason)
            case messages.LivenessCheck():
                await self._report_hold(delivery)
            case messages.Warm() as warm:
                self._take_warm(delivery, warm)
            case _:
                await self.on_work(delivery)

    def unknown(self, message: Message) -> UnknownMessage:
        return UnknownMessage(f"a {self._service.role} worker has no use for {type(message).__name__}")

    async def replace_earlier(self, job: J, sender: str) -> None:
        """Every route passes here before the book takes it: earlier ones of its request end.

        Raises Overloaded while draining, Cancelled or StaleEpoch when it comes too late, InvalidRequest where
        `sender` is not the gateway that it names.
        """
        _check_sender(sender, job.gateway)
        if self._service.stopping.is_set():
            raise Overloaded("this worker is draining; use another one")
        self._book.check_epoch(job.request_id, job.epoch, job.gateway)
        for earlier in self._book.of_request(job.request_id):
            if earlier.key != job.key:
                await self._stop(earlier, "replaced")

    def take_in(self, job: J, adapter: AdapterId, add: Callable[[], None]) -> None:
        """`add` puts the job into the book; its grammar is compiled meanwhile. Raises Overloaded, changing
        nothing."""
        job.adapter = self._adapters.engine_name(adapter)  # from here on the book keeps it loaded
        self._grammar_compiler.check_room(job.spec.params.grammar)
        add()
        if job.spec.params.grammar is not None:
            elsewhere = self.is_tried_elsewhere(job)
            self._grammar_compiler.begin(job.key, job.spec.params.grammar, tried_elsewhere=elsewhere)

    def _take_warm(self, delivery: Delivery, warm: messages.Warm) -> None:
        """No answer is waited for: what is raised is counted."""
        envelope = delivery.envelope
        _check_sender(delivery.sender, warm.gateway)
        self._book.check_epoch(envelope.request_id, envelope.epoch, warm.gateway)
        self._warmer.offer(envelope, warm, self.bus.deadline_of(envelope), busy=self._is_busy())

    def _is_busy(self) -> bool:
        return self.is_computing() or self._service.stopping.is_set()

    async def _take_grammars(self) -> None:
        for key, result in self._grammar_compiler.take_ended():
            job = self._book.jobs.get(key)
            if job is None:
                continue
            if isinstance(result, PenstockError):
                await self._lose(job, result)
            else:
                job.grammar = result

    async def _cancel(self, delivery: Delivery, reason: str) -> None:
        envelope = delivery.envelope
        jobs = self._book.cancel(envelope.request_id, envelope.epoch, reason, delivery.sender)
        phase = jobs[0].phase.value if jobs else ""
        for job in jobs:
            await self._stop(job, reason)
        warmed = self._warmer.cancel(envelope.request_id, delivery.sender)
        await self.bus.answer(envelope, CancelAck(bool(jobs) or warmed, phase or "warming" * warmed))

    async def _report_hold(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        job = self._book.jobs.get(sequence_key(envelope.request_id, envelope.epoch))
        held = job is not None and job.phase is not JobPhase.STOPPING
        await self.bus.answer(envelope, HoldReport(held))

    # ---- time and neighbours ------------------------------------------------------------------------

    def holds_work(self) -> bool:
        return bool(self._book.jobs)

    def held(self) -> Iterable[Held]:
        yield from self._warmer.held()
        yield from super().held()

    def adapters_in_use(self) -> set[str]:
        return {self._warmer.adapter, *(job.adapter for job in self._book.jobs.values())} - {""}

    async def on_tick(self) -> None:
        for job in self._book.abandoned():
            log.info("lease_expired", request_id=job.request_id, phase=job.phase.value)
            await self._stop(job, "lease expired")

    async def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        """A peer that is gone ends its transfers. A silent gateway keeps its lease, a dead one does not."""
        if role == self.peer_role:
            for job in self._book.in_phase(JobPhase.QUEUED):
                if job.peer == instance:
                    gone = Unavailable(f"{role} worker {instance} was lost ({why})", hop=role)
                    await self._lose(job, gone)
            self._transfers.peer_lost(instance)
        elif role == "gateway" and why != "suspect":
            for job in self._book.of_gateway(instance):
                await self._stop(job, "gateway lost")
            self._warmer.cancel_of(instance)

    # ---- one turn -----------------------------------------------------------------------------------

    async def turn(self) -> bool:
        if self._transferring is not None and self._transferring.done():
            raise InternalError("the KV transfers ended") from self._transferring.exception()
        await self._outbox.send_waiting()
        await self.end_transfers()
        await self.tell_verdicts()
        await self._take_grammars()
        if await self.take_steps():
            for job in self._book.expired_at_work():
                await self._lose(job, self.deadline_passed(job))
            await self.admit_jobs()
            self._warmer.go_on(busy=self._is_busy())
            await self.step_on()
            await self.after_begin()
            self._show()
        return False

    # ---- ends -----------------------------------------------------------------------------------------

    async def _stop(self, job: J, reason: str) -> None:
        """Its session knows already."""
        await self.answer_pending(job, Cancelled(f"the request was cancelled ({reason})"))
        self._release(job, reason)

    async def _lose(self, job: J, error: PenstockError) -> None:
        """The job cannot go on here: its session hears of it, then everything is given back."""
        if job.phase is JobPhase.STOPPING:
            return
        if not await self.answer_pending(job, error):
            await self._report_lost(job, error)
        self._release(job, error.code)

    def _release(self, job: J, reason: str) -> None:
        self.forget_grammar(job)
        self.release_job(job, reason)

    def forget_grammar(self, job: J) -> None:
        """It is not to be compiled for this job any more."""
        if job.compiling:
            self._grammar_compiler.forget(job.key)

    async def _report_lost(self, job: J, error: PenstockError) -> None:
        await self._outbox.lost(job.gateway, job.request_id, job.epoch, error)

    # ---- to be seen -------------------------------------------------------------------------------------

    def status(self) -> Heartbeat:
        beat = super().status()
        labelled(metrics.QUEUE_DEPTH, self._service.role).set(beat.queued)
        return beat

    def _show(self) -> None:
        self._driver.show_blocks()
        if not self.holds_work():
            self._idle.set()


def _check_sender(sender: str, gateway: str) -> None:
    """Raises InvalidRequest where `sender`, if it has said who it is, is not the gateway that it names."""
    if sender not in ("", gateway):
        metrics.DROPPED_MESSAGES.labels(reason="foreign_route").inc()
        raise InvalidRequest(f"{sender} places a request for {gateway}; a gateway places its own")
