"""The retriever's actor: passages inside the budget or, where allowed, an answer without; vectors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.first_passages import tell_first
from services.retriever.question import (
    DEGRADED_NO_CORPUS,
    Question,
    SearchAsk,
    accept_question,
    check_question,
    degraded,
)
from services.retriever.question_batch import next_batch
from services.retriever.served_corpus import ServedCorpus
from services.retriever.text_jobs import NO_RERANKER, TextJob, check_texts
from shared.actor import BusActor, Tombstones
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
    Embed,
    Embedded,
    Heartbeat,
    Held,
    Message,
    RerankTexts,
    Retrieve,
    Retrieved,
    TextScores,
)
from shared.retrieval.embedder import MAX_TOKENS, MODEL_NAME
from shared.service import Service
from shared.telemetry import metrics

log = structlog.get_logger()

HOP = "retriever"

Search = Callable[[Sequence[SearchAsk]], Sequence[Retrieved | PenstockError]]
"""Runs in the worker thread; one answer for each question, and on the way there what it has so far."""
RunTexts = Callable[[TextJob], Embedded | TextScores]
"""Runs in the worker thread."""


class RetrieverActor(BusActor):
    """Owns the queues of questions and of texts that are of no corpus, and what is in the worker thread.

    A question leaves as soon as its limit is reached, with what the thread has found for it until then;
    what that finds later has no reader. Questions and texts take turns where both wait.
    """

    def __init__(
        self,
        service: Service[RetrieverConfig],
        corpora: Corpora,
        search: Search,
        run_texts: RunTexts,
        reranker: str = "",
    ) -> None:
        """`reranker` is the name of the one that there is, "" for none."""
        super().__init__(HOP, service)
        self._service = service
        self._config = service.config
        self._corpora = corpora
        self._search = search
        self._run_texts = run_texts
        self._reranker = reranker
        self._waiting: deque[Question] = deque()
        self._batch: list[Question] = []
        self._firsts: deque[Question] = deque()
        """Of the batch: those of whose passages their gateways are to hear before they are reranked."""
        self._text_jobs: deque[TextJob] = deque()
        self._text_job: TextJob | None = None
        self._texts_first = False
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._crash: BaseException | None = None
        self._tombstones = Tombstones()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=HOP)

    def status(self) -> Heartbeat:
        return self._service.heartbeat(
            model=MODEL_NAME,
            context_tokens=MAX_TOKENS,
            capacity=self._config.max_queued,
            live=len(self._batch) + (self._text_job is not None),
            queued=self.queued + self._total_waiting,
            reranker=self._reranker,
            corpora=self._corpora.reports(),
        )

    @property
    def _total_waiting(self) -> int:
        return len(self._waiting) + len(self._text_jobs)

    def held(self) -> list[Held]:
        computing = [Held(asked.request_id, "queued", 1, "searching") for asked in self._batch]
        if self._text_job is not None:
            computing.append(Held(self._text_job.request_id, "queued", 1, self._text_job.phase))
        waiting: list[Question | TextJob] = [*self._waiting, *self._text_jobs]
        return computing + [Held(asked.request_id, "queued", 1, "queued") for asked in waiting]

    # ---- messages -------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case Retrieve() as retrieve:
                await self._on_retrieve(delivery, retrieve)
            case Embed() | RerankTexts() as texts:
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
        self._waiting.append(asked)

    def _on_texts(self, delivery: Delivery, message: Embed | RerankTexts) -> None:
        self._check_wanted(delivery)
        check_texts(message)
        if isinstance(message, RerankTexts) and not self._reranker:
            raise NotFound(NO_RERANKER)
        end = self._end_of(delivery)
        end.check(HOP)
        self._check_room()
        self._text_jobs.append(TextJob(delivery, message, end))

    def _check_wanted(self, delivery: Delivery) -> None:
        """Raises Cancelled for what nobody waits for any more."""
        reason = self._tombstones.refuses(delivery.envelope.request_id, delivery.envelope.epoch)
        if reason:
            raise cancelled(reason)

    def _end_of(self, delivery: Delivery) -> Deadline:
        return self.bus.deadline_of(delivery.envelope) or Deadline.after(self._config.default_budget_s)

    def _check_room(self) -> None:
        if self._total_waiting >= self._config.max_queued:
            raise Overloaded(
                f"{self._total_waiting} questions are waiting already; try another retriever",
                retry_after_ms=100,
            )

    async def _cancel(self, delivery: Delivery, cancel: Cancel) -> CancelAck:
        request_id, epoch = delivery.envelope.request_id, delivery.envelope.epoch
        self._tombstones.add(request_id, epoch, cancel.reason)
        held = [
            asked
            for asked in self._everything()
            if asked.request_id == request_id and asked.delivery.envelope.epoch <= epoch
        ]
        computed = any(asked in self._batch or asked is self._text_job for asked in held)
        for asked in held:
            self._forget(asked)
            await self.refuse(asked.delivery, cancelled(cancel.reason))
        return CancelAck(bool(held), "searching" if computed else "queued" if held else "")

    def _all_text_jobs(self) -> list[TextJob]:
        return [*self._text_jobs, *([] if self._text_job is None else [self._text_job])]

    def _everything(self) -> list[Question | TextJob]:
        return [*self._waiting, *self._batch, *self._all_text_jobs()]

    def _forget(self, asked: Question | TextJob) -> None:
        if isinstance(asked, TextJob):
            asked.dropped = True
            if asked is self._text_job:
                self._text_job = None
            else:
                self._text_jobs.remove(asked)
        elif asked in self._batch:
            self._batch.remove(asked)
        else:
            self._waiting.remove(asked)

    # ---- work -------------------------------------------------------------------------------------

    async def turn(self) -> bool:
        """Answer what has reached its limit, then give the thread the next batch when it is free."""
        if self._crash is not None:
            raise self._crash
        for asked in [asked for asked in (*self._waiting, *self._batch) if asked.end.expired()]:
            self._forget(asked)
            await self._give(asked, asked.late_answer())
        for job in [job for job in self._all_text_jobs() if job.end.expired()]:
            self._forget(job)
            await self.refuse(job.delivery, job.late_answer())
        while self._firsts:
            first = self._firsts.popleft()
            if first in self._batch:  # else it was answered at its limit, or cancelled
                await tell_first(self.bus, first)
        if self._work is None and self._total_waiting:
            self._work = asyncio.create_task(self._next_work(), name="retrieve")
            self._work.add_done_callback(self._on_done)
        self._set_timer()
        metrics.QUEUE_DEPTH.labels(service=HOP).set(self._total_waiting)
        return False

    def _next_work(self) -> Coroutine[Any, Any, None]:
        """Of questions a batch, of texts one job."""
        if self._text_jobs and (self._texts_first or not self._waiting):
            self._texts_first = False
            self._text_job = self._text_jobs.popleft()
            return self._run_job(self._text_job)
        self._texts_first = True
        self._batch = next_batch(self._waiting, self._config.batch, self._config.batch_bytes)
        for asked in self._batch:
            self._waiting.remove(asked)
        return self._run_batch(self._search)

    async def _run_job(self, job: TextJob) -> None:
        """Answers in every case; only what is no Exception, a panic in an extension, is raised then."""
        loop = asyncio.get_running_loop()
        answer: Message | PenstockError
        panic: BaseException | None = None
        try:
            answer = await loop.run_in_executor(self._thread, self._run_texts, job)
        except PenstockError as error:
            answer = error
        except BaseException as error:
            if self._ended:  # it has been answered
                raise
            log.exception("texts_failed", phase=job.phase, texts=len(job.message.texts))
            panic = None if isinstance(error, Exception) else error
            answer = InternalError(f"{job.phase} the texts failed; the retriever's log has the cause")
        if self._text_job is job:  # else it was answered at its limit, or cancelled
            self._text_job = None
            await self.bus.answer(job.delivery.envelope, answer, hop=HOP)
        if panic is not None:
            raise panic

    async def _run_batch(self, search: Search) -> None:
        """Answers in every case; only what is no Exception, a panic in an extension, is raised then."""
        batch = list(self._batch)
        loop = asyncio.get_running_loop()
        for asked in batch:
            if asked.retrieve.tell_first:
                asked.ask.on_first = partial(loop.call_soon_threadsafe, self._note_first, asked)
        answers: Sequence[Retrieved | PenstockError]
        panic: BaseException | None = None
        try:
            answers = await loop.run_in_executor(self._thread, search, [asked.ask for asked in batch])
        except BaseException as error:
            if self._ended:  # all have been answered
                raise
            log.exception("retrieve_failed", questions=len(batch))
            panic = None if isinstance(error, Exception) else error
            answers = [InternalError("the search failed; the retriever's log has the cause")] * len(batch)
        for asked, answer in zip(batch, answers, strict=True):
            if asked in self._batch:  # else it was answered at its limit, or cancelled
                self._batch.remove(asked)
                await self._give(asked, answer)
        if panic is not None:
            raise panic

    def _note_first(self, asked: Question) -> None:
        self._firsts.append(asked)
        self.wake()

    def _on_done(self, work: asyncio.Task[None]) -> None:
        """A panic leaves this actor to its supervisor: who knows what it has left behind."""
        self._work = None
        if not work.cancelled():
            self._crash = self._crash or work.exception()
        self.wake()

    async def _give(self, asked: Question, answer: Retrieved | PenstockError) -> None:
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
        limits = [asked.end for asked in (*self._waiting, *self._batch)]
        limits += [job.end for job in self._all_text_jobs()]
        if limits:
            self._timer = asyncio.get_running_loop().call_later(min(limits).remaining_s(), self.wake)

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for asked in self._everything():
            if isinstance(asked, TextJob):
                asked.dropped = True
            await self.refuse(asked.delivery, Unavailable("this retriever ends; ask another one"))
        self._waiting.clear()
        self._batch.clear()
        self._firsts.clear()
        self._text_jobs.clear()
        self._text_job = None
        if self._work is not None:
            self._work.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _nothing_to_search(corpus: ServedCorpus | None) -> NotFound:
    """Where the cause lies is for the operator alone, who reads it in the log."""
    if corpus is None:
        return NotFound(
            "no folder is indexed that you may search; start the stack with --corpus DIR or set "
            "PENSTOCK_RETRIEVER_CORPUS"
        )
    why = "its index cannot be used; `penstock status` says why" if corpus.trouble else "it is being indexed"
    return NotFound(f"the corpus {corpus.named.name!r} cannot be searched now: {why}")
