"""The retriever's actor: passages inside the budget or, where allowed, an answer without; vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from services.retriever.computing import WorkResult
from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.first_passages import send_first_passages
from services.retriever.passage_ranker import Unranked
from services.retriever.question import (
    DEGRADED_NO_CORPUS,
    Question,
    accept_question,
    check_question,
    degraded,
)
from services.retriever.served_corpus import ServedCorpus
from services.retriever.text_jobs import NO_RERANKER, TextJob, TextMessage, check_texts
from services.retriever.work_queue import Asked, RetrieverWork, WorkQueue
from shared.actor import Tombstones
from shared.actor.bus_actor import cancelled
from shared.bus import Delivery
from shared.deadline import Deadline
from shared.errors import (
    InternalError,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
    UnknownMessage,
)
from shared.messages import (
    Cancel,
    CancelAck,
    CiteAnswer,
    Embed,
    Heartbeat,
    Held,
    Message,
    RerankTexts,
    Retrieve,
    Retrieved,
    RetrieverReport,
)
from shared.process.serve_actor import ServiceActor
from shared.process.service import Service
from shared.retrieval.encoders.embedder import MAX_TOKENS, MODEL_NAME
from shared.seams.threads import THREADS
from shared.tasks import start_task
from shared.telemetry import metrics

log = structlog.get_logger()

HOP = "retriever"

Compute = Callable[[RetrieverWork], Sequence[WorkResult]]
"""Runs in the worker thread; one answer for each that is asked, and questions have on the way there what was
found for them so far."""


class RetrieverActor(ServiceActor):
    """Owns what waits and what is in the worker thread.

    A question leaves as soon as its limit is reached, with what the thread has found for it until then;
    what that finds later has no reader.
    """

    def __init__(
        self,
        service: Service[RetrieverConfig],
        corpora: Corpora,
        compute: Compute,
        *,
        reranker: str,
    ) -> None:
        """`reranker` is the name of the one that there is, "" for none."""
        super().__init__(HOP, service)
        self._service = service
        self._config = service.config
        self._corpora = corpora
        self._compute = compute
        self._reranker = reranker
        self._work_queue = WorkQueue(self._config.batch, self._config.batch_bytes)
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._crash: BaseException | None = None
        self._tombstones = Tombstones()
        self._thread = THREADS.pool(1, HOP)

    def status(self) -> Heartbeat:
        return replace(
            self._service.heartbeat(),
            model=MODEL_NAME,
            context_tokens=MAX_TOKENS,
            capacity=self._config.max_queued,
            live=self._work_queue.computing,
            queued=self.queued + self._work_queue.waiting,
            retriever=RetrieverReport(self._reranker, self._corpora.reports()),
        )

    def held(self) -> list[Held]:
        return self._work_queue.held()

    # ---- messages -------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case Retrieve() as retrieve:
                await self._on_retrieve(delivery, retrieve)
            case Embed() | RerankTexts() | CiteAnswer() as texts:
                self._on_texts(delivery, texts)
            case Cancel() as cancel:
                ack = await self._cancel(delivery, cancel)
                await self.bus.answer(delivery.envelope, ack)
            case other:
                raise UnknownMessage(f"a retriever has no use for {type(other).__name__}")

    async def _on_retrieve(self, delivery: Delivery, retrieve: Retrieve) -> None:
        envelope = delivery.envelope
        self._check_wanted(delivery)
        check_question(retrieve)
        corpus = self._corpora.find(retrieve.corpus, retrieve.tenant)
        if corpus is None or not corpus.generation:
            if not retrieve.may_degrade:
                raise _nothing_to_search(corpus)
            await self.bus.reply(envelope, degraded(DEGRADED_NO_CORPUS))
            return
        asked = accept_question(delivery, retrieve, corpus, self._end_of(delivery), self._config.soft_share)
        self._check_room()
        self._work_queue.add(asked)

    def _on_texts(self, delivery: Delivery, message: TextMessage) -> None:
        self._check_wanted(delivery)
        check_texts(message)
        if isinstance(message, RerankTexts) and not self._reranker:
            raise NotFound(NO_RERANKER)
        end = self._end_of(delivery)
        end.check(HOP)
        self._check_room()
        self._work_queue.add(TextJob(delivery, message, end))

    def _check_wanted(self, delivery: Delivery) -> None:
        """Raises Cancelled for what nobody waits for any more."""
        reason = self._tombstones.refuses(delivery.envelope.request_id, delivery.envelope.epoch)
        if reason:
            raise cancelled(reason)

    def _end_of(self, delivery: Delivery) -> Deadline:
        return self.bus.deadline_of(delivery.envelope) or Deadline.after(self._config.default_budget_s)

    def _check_room(self) -> None:
        if self._work_queue.waiting >= self._config.max_queued:
            raise Overloaded(
                f"{self._work_queue.waiting} questions are waiting already; try another retriever",
                retry_after_ms=100,
            )

    async def _cancel(self, delivery: Delivery, cancel: Cancel) -> CancelAck:
        request_id, epoch = delivery.envelope.request_id, delivery.envelope.epoch
        self._tombstones.add(request_id, epoch, cancel.reason)
        held = [
            asked
            for asked in self._work_queue.everything()
            if asked.request_id == request_id and asked.delivery.envelope.epoch <= epoch
        ]
        computed = False
        for asked in held:
            computed |= self._work_queue.forget(asked)
            await self.refuse(asked.delivery, cancelled(cancel.reason))
        return CancelAck(bool(held), "searching" if computed else "queued" if held else "")

    # ---- work -------------------------------------------------------------------------------------

    async def turn(self) -> bool:
        """Answer what has reached its limit, then give the thread the next batch when it is free."""
        if self._crash is not None:
            raise self._crash
        for asked in [asked for asked in self._work_queue.everything() if asked.end.expired()]:
            self._work_queue.forget(asked)
            await self._give(asked, asked.late_answer())
        if self._work is None and (work := self._work_queue.next_work()) is not None:
            self._work = start_task(self._run(work), name="retrieve")
            self._work.add_done_callback(self._on_done)
        self._set_timer()
        metrics.QUEUE_DEPTH.labels(service=HOP).set(self._work_queue.waiting)
        return False

    async def _run(self, work: RetrieverWork) -> None:
        """Answers in every case; only what is no Exception, a panic in an extension, is raised then."""
        loop = asyncio.get_running_loop()
        answers: Sequence[WorkResult]
        panic: BaseException | None = None
        try:
            answers = await loop.run_in_executor(self._thread, self._compute, work)
        except BaseException as error:
            if self._ended:  # all have been answered
                raise
            log.exception("retrieve_failed", doing=work.kind.value, count=len(work.asked))
            panic = None if isinstance(error, Exception) else error
            failure = InternalError(f"{work.kind.value} failed; the retriever's log has the cause")
            answers = [failure] * len(work.asked)
        for asked, answer in zip(work.asked, answers, strict=True):
            if not self._work_queue.done(asked):  # it was answered at its limit, or cancelled
                continue
            if not isinstance(answer, Unranked):
                await self._give(asked, answer)
            elif isinstance(asked, Question):
                self._work_queue.rerank_later(asked, answer)
                if asked.retrieve.send_first_passages:
                    await send_first_passages(self.bus, asked)
        if panic is not None:
            raise panic

    def _on_done(self, work: asyncio.Task[None]) -> None:
        """A panic leaves this actor to its supervisor: who knows what it has left behind."""
        self._work = None
        if not work.cancelled():
            self._crash = self._crash or work.exception()
        self.wake()

    async def _give(self, asked: Asked, answer: Message | PenstockError) -> None:
        if isinstance(answer, Retrieved):
            metrics.HOP_SECONDS.labels(hop=HOP, phase="embed").observe(answer.embed_us / 1e6)
            metrics.HOP_SECONDS.labels(hop=HOP, phase="search").observe(answer.search_us / 1e6)
            if answer.rerank_us:
                metrics.HOP_SECONDS.labels(hop=HOP, phase="rerank").observe(answer.rerank_us / 1e6)
        await self.bus.answer(asked.delivery.envelope, answer, hop=HOP)

    def _set_timer(self) -> None:
        """Wake at the next limit, though no message may come until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if limits := [asked.end for asked in self._work_queue.everything()]:
            self._timer = asyncio.get_running_loop().call_later(min(limits).remaining_s(), self.wake)

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for asked in self._work_queue.everything():
            self._work_queue.forget(asked)
            await self.refuse(asked.delivery, Unavailable("this retriever ends; ask another one"))
        if self._work is not None:
            self._work.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _nothing_to_search(corpus: ServedCorpus | None) -> NotFound:
    """Return the error of a corpus with nothing to search; the operator reads the cause in the log."""
    if corpus is None:
        return NotFound(
            "no folder is indexed that you may search; start the stack with --corpus DIR or set "
            "PENSTOCK_RETRIEVER_CORPUS"
        )
    why = "its index cannot be used; `penstock status` says why" if corpus.trouble else "it is being indexed"
    return NotFound(f"the corpus {corpus.named.name!r} cannot be searched now: {why}")
