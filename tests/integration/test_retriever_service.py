"""The retriever on a real bus: the actor with a search that the test holds, and the whole process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.retriever.actor import RetrieverActor
from services.retriever.computing import WorkResult
from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.passage_ranker import Unranked
from services.retriever.question import MAX_K, Question, SearchAsk
from services.retriever.served_corpus import ServedCorpus
from services.retriever.text_jobs import TextJob
from services.retriever.work_queue import RetrieverWork
from shared.actor import receiver
from shared.bus import Bus, Delivery
from shared.bus.fleet import FleetView
from shared.bus.subjects import FLEET_ALL, inbox
from shared.config.named_corpus import NamedCorpus
from shared.deadline import Deadline
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    TooLarge,
)
from shared.messages import (
    MAX_EMBED_TEXT_BYTES,
    MAX_EMBED_TEXTS,
    MAX_QUERY_CHARS,
    MAX_RERANK_TEXTS,
    AuditReport,
    AuditRequest,
    Cancel,
    CancelAck,
    Embed,
    Embedded,
    FoundFirst,
    Heartbeat,
    Message,
    RerankTexts,
    Retrieve,
    Retrieved,
    ScoredPassage,
    TextScores,
)
from shared.process.service import Service
from shared.retrieval.encoders.embedder import DIMENSIONS, MAX_TOKENS, MODEL_NAME, Embedder
from shared.retrieval.index.build import LOCK_NAME, build_index, index_folder
from shared.retrieval.index.passage_index import PassageIndex
from tests.support import metric
from tests.support.forked import ForkedProcess, start_forked
from tests.support.wait import until

REPOSITORY = Path(__file__).resolve().parents[2]
SUBJECT = inbox("retriever", "retriever-0")
START_TIMEOUT_S = 100.0


class Panic(BaseException):
    """As those of extensions in Rust: no Exception."""


class HeldSearch:
    """Answers every question with itself, once the test lets it; where it `is_reranked`, in two steps."""

    def __init__(self, *, is_reranked: bool = False) -> None:
        self.go = threading.Event()
        self.go_rerank = threading.Event()
        self._is_reranked = is_reranked
        self.batches: list[list[str]] = []
        self.found_at_once: Retrieved | None = None
        self.job: TextJob | None = None
        self.reranked_ask: SearchAsk | None = None

    def compute(self, work: RetrieverWork) -> Sequence[WorkResult]:
        first = work.asked[0]
        if isinstance(first, TextJob):
            return [self.run_texts(first)]
        if work.unranked is not None:
            self.batches.append(["rerank", first.retrieve.query])
            self.reranked_ask = first.ask
            assert self.go_rerank.wait(60)
            return [work.unranked.found]
        found = self.search([asked.ask for asked in work.asked if isinstance(asked, Question)])
        return [Unranked(each, (), ()) for each in found] if self._is_reranked else found

    def search(self, asks: Sequence[SearchAsk]) -> list[Retrieved]:
        questions = [ask.retrieve for ask in asks]
        self.batches.append([question.query for question in questions])
        for ask in asks:
            ask.found = self.found_at_once
        assert self.go.wait(60)
        if questions[0].query == "crash":
            raise RuntimeError("the index is broken")
        if questions[0].query == "panic":
            raise Panic
        return [
            Retrieved((ScoredPassage("source", question.query, 1.0),), "", 1, 1) for question in questions
        ]

    def run_texts(self, job: TextJob) -> Embedded | TextScores:
        assert isinstance(job.message, Embed | RerankTexts)
        texts = job.message.texts
        self.batches.append(list(texts))
        self.job = job
        assert self.go.wait(60)
        if texts[0] == "crash":
            raise RuntimeError("the model is broken")
        if isinstance(job.message, RerankTexts):
            counts = tuple(map(len, texts))
            return TextScores(tuple(map(float, counts)), counts, (False,) * len(texts))
        return Embedded(tuple(text.encode() for text in texts), (1,) * len(texts), (False,) * len(texts))


class Rig:
    """A running actor and somebody who asks it."""

    def __init__(self, service: Service[RetrieverConfig], asker: Bus, search: HeldSearch) -> None:
        self.service = service
        self.asker = asker
        self.search = search

    async def ask(
        self, message: Message, seconds: float = 20.0, request_id: str = "r", epoch: int = 1
    ) -> Message:
        deadline = Deadline.after(seconds)
        envelope = self.asker.envelope(request_id, epoch, deadline)
        return await self.asker.ask(SUBJECT, message, envelope, Deadline.after(25.0))

    async def retrieve(
        self,
        query: str,
        seconds: float = 20.0,
        *,
        k: int = 3,
        may_degrade: bool = True,
        request_id: str = "r",
    ) -> Retrieved:
        answer = await self.ask(Retrieve(query, k, may_degrade), seconds, request_id)
        assert isinstance(answer, Retrieved)
        return answer

    async def held(self) -> list[tuple[str, str]]:
        report = await self.ask(AuditRequest())
        assert isinstance(report, AuditReport)
        return [(held.request_id, held.phase) for held in report.held]

    async def until_held(self, *wanted: tuple[str, str]) -> None:
        async def held() -> bool:
            return await self.held() == list(wanted)

        await until(held)


def indexed(name: str = "default", *tenants: str) -> ServedCorpus:
    """A corpus with an index, of which the held search finds what it likes."""
    corpus = ServedCorpus(NamedCorpus(name, f"/{name}", tenants))
    corpus.replace_index(PassageIndex((), np.zeros((0, DIMENSIONS), np.float32)), 1)
    return corpus


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig(nats_url: str) -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    async def make(
        corpora: Sequence[ServedCorpus] | None = None,
        *,
        reranker: str = "played",
        is_reranked: bool = False,
        **config: object,
    ) -> Rig:
        served = Corpora([indexed()] if corpora is None else corpora)
        settings = RetrieverConfig(**config)  # type: ignore[arg-type]  # its own fields
        service = Service("retriever", settings, "retriever-0")
        service.bus = await Bus.connect(nats_url, name="retriever")
        search = HeldSearch(is_reranked=is_reranked)
        actor = service.supervisor.start(
            lambda: RetrieverActor(service, served, search.compute, reranker=reranker)
        )
        await service.bus.serve(SUBJECT, receiver(actor))
        rigs.append(Rig(service, await Bus.connect(nats_url, name="asker"), search))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.search.go.set()
        rig.search.go_rerank.set()
        await rig.service.supervisor.stop(Deadline.after(5.0))
        await rig.service.bus.close()
        await rig.asker.close()


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig()


async def test_a_question_is_answered_with_its_passages(rig: Rig) -> None:
    rig.search.go.set()
    answer = await rig.retrieve("where?")
    assert answer.passages == (ScoredPassage("source", "where?", 1.0),)
    assert answer.degraded == ""
    assert await rig.held() == []


async def test_at_the_soft_limit_a_question_degrades_although_the_search_still_runs(rig: Rig) -> None:
    answer = await rig.retrieve("where?", seconds=0.3)
    assert answer == Retrieved((), "retrieval", 0, 0)
    assert rig.search.batches == [["where?"]]
    assert await rig.held() == []


async def test_at_the_soft_limit_a_question_gets_what_has_been_found_until_then(rig: Rig) -> None:
    found = Retrieved((ScoredPassage("source", "by words", 0.5),), "dense search", 0, 0)
    rig.search.found_at_once = found
    assert await rig.retrieve("where?", seconds=0.5) == found


async def test_who_wants_it_hears_of_passages_before_they_have_their_last_order(make_rig: MakeRig) -> None:
    rig = await make_rig(is_reranked=True)
    told: list[Delivery] = []
    await rig.asker.serve(inbox("gateway", "gateway-0"), told.append)
    first = ScoredPassage("source", "by words", 0.5)
    rig.search.found_at_once = Retrieved((first,), "rerank", 0, 0)
    rig.search.go.set()

    async def ask(request_id: str, *, send_first_passages: bool) -> Message:
        envelope = rig.asker.envelope(request_id, 3, Deadline.after(20.0), "gateway-0")
        asked = Retrieve("where?", 3, may_degrade=True, send_first_passages=send_first_passages)
        return await rig.asker.ask(SUBJECT, asked, envelope, Deadline.after(25.0))

    asks = [
        asyncio.create_task(ask("not told", send_first_passages=False)),
        asyncio.create_task(ask("told", send_first_passages=True)),
    ]
    await until(lambda: told)
    rig.search.go_rerank.set()
    await asyncio.gather(*asks)
    assert [(one.envelope.request_id, one.envelope.epoch) for one in told] == [("told", 3)]
    assert told[0].message == FoundFirst((first,))


async def test_whose_question_is_cancelled_does_not_hear_of_first_passages(make_rig: MakeRig) -> None:
    rig = await make_rig(is_reranked=True)
    told: list[Delivery] = []
    await rig.asker.serve(inbox("gateway", "gateway-0"), told.append)
    rig.search.found_at_once = Retrieved((ScoredPassage("source", "by words", 0.5),), "rerank", 0, 0)
    envelope = rig.asker.envelope("a", 1, Deadline.after(20.0), "gateway-0")
    asked = Retrieve("where?", 3, may_degrade=True, send_first_passages=True)
    asking = asyncio.create_task(rig.asker.ask(SUBJECT, asked, envelope, Deadline.after(25.0)))
    await rig.until_held(("a", "searching"))
    await rig.ask(Cancel("cancelled"), request_id="a")
    rig.search.go.set()
    rig.search.go_rerank.set()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await rig.retrieve("next")).passages
    assert told == []


async def test_who_comes_while_many_wait_to_be_reranked_is_searched_for_between_two_of_them(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(is_reranked=True)
    calls = [asyncio.create_task(rig.retrieve("q0", request_id="0"))]
    await rig.until_held(("0", "searching"))
    for number in (1, 2):
        calls.append(asyncio.create_task(rig.retrieve(f"q{number}", request_id=str(number))))
        await until(partial(_has, rig, str(number)))
    rig.search.go.set()
    await until(lambda: ["rerank", "q0"] in rig.search.batches)
    calls.append(asyncio.create_task(rig.retrieve("late", request_id="3")))
    await until(partial(_has, rig, "3"))
    rig.search.go_rerank.set()
    assert [answer.passages[0].text for answer in await asyncio.gather(*calls)] == ["q0", "q1", "q2", "late"]
    assert rig.search.batches[:4] == [["q0"], ["rerank", "q0"], ["q1", "q2", "late"], ["rerank", "q1"]]
    assert await rig.held() == []


async def test_at_the_soft_limit_a_question_that_is_reranked_has_the_order_of_its_search(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(is_reranked=True)
    rig.search.go.set()
    found = Retrieved((ScoredPassage("source", "by the search", 0.5),), "rerank", 0, 0)
    rig.search.found_at_once = found
    assert await rig.retrieve("where?", seconds=1.0) == found
    assert rig.search.reranked_ask is not None
    assert rig.search.reranked_ask.dropped


async def test_a_cancel_forgets_a_question_that_is_being_reranked(make_rig: MakeRig) -> None:
    rig = await make_rig(is_reranked=True)
    rig.search.go.set()
    asked = asyncio.create_task(rig.retrieve("where?", request_id="a"))
    await rig.until_held(("a", "reranking"))
    assert await rig.ask(Cancel("cancelled"), request_id="a") == CancelAck(True, "searching")
    with pytest.raises(Cancelled):
        await asked
    assert await rig.held() == []


async def test_a_question_that_waits_behind_a_stuck_search_degrades_too(rig: Rig) -> None:
    first = asyncio.create_task(rig.retrieve("first", request_id="a"))
    await rig.until_held(("a", "searching"))
    answer = await rig.retrieve("second", seconds=0.3, request_id="b")
    assert answer.degraded == "retrieval"
    rig.search.go.set()
    assert (await first).passages[0].text == "first"


async def test_without_leave_to_degrade_the_question_expires_and_names_the_hop(rig: Rig) -> None:
    with pytest.raises(DeadlineExpired) as caught:
        await rig.retrieve("where?", seconds=0.3, may_degrade=False)
    assert caught.value.hop == "retriever"
    assert await rig.held() == []


async def test_a_question_that_expires_while_nobody_waits_for_it_is_counted(rig: Rig) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="expired")
    envelope = rig.asker.envelope("r", 1, Deadline.after(0.3))
    await rig.asker.publish(SUBJECT, Retrieve("where?", 3, may_degrade=False), envelope)
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="expired") == before + 1)


async def test_a_question_that_comes_too_late_is_never_started(rig: Rig) -> None:
    late = rig.asker.envelope("r", 1, Deadline.after(-1.0))
    with pytest.raises(DeadlineExpired):
        await rig.asker.ask(SUBJECT, Retrieve("where?", 3, may_degrade=True), late, Deadline.after(20.0))
    assert rig.search.batches == []


async def test_questions_that_wait_are_searched_together(rig: Rig) -> None:
    asked = [asyncio.create_task(rig.retrieve("q0", request_id="0"))]
    await rig.until_held(("0", "searching"))
    asked += [asyncio.create_task(rig.retrieve(f"q{n}", request_id=str(n))) for n in range(1, 5)]

    async def all_wait() -> bool:
        return len(await rig.held()) == 5

    await until(all_wait)
    rig.search.go.set()
    answers = await asyncio.gather(*asked)
    assert [answer.passages[0].text for answer in answers] == [f"q{n}" for n in range(5)]
    assert [len(batch) for batch in rig.search.batches] == [1, 4]


async def test_over_the_queue_limit_a_question_is_refused_with_a_hint(make_rig: MakeRig) -> None:
    rig = await make_rig(max_queued=1)
    first = asyncio.create_task(rig.retrieve("a", request_id="a"))
    await rig.until_held(("a", "searching"))
    second = asyncio.create_task(rig.retrieve("b", request_id="b"))
    await rig.until_held(("a", "searching"), ("b", "queued"))
    with pytest.raises(Overloaded) as caught:
        await rig.retrieve("c", request_id="c")
    assert caught.value.retry_after_ms > 0
    rig.search.go.set()
    await asyncio.gather(first, second)


@pytest.mark.parametrize("k", [0, MAX_K + 1, -1])
async def test_a_wrong_number_of_passages_is_refused(rig: Rig, k: int) -> None:
    with pytest.raises(InvalidRequest, match=f"k is {k}; ask for 1 to {MAX_K}"):
        await rig.retrieve("where?", k=k)


@pytest.mark.parametrize(("query", "word"), [("  \n", "empty"), ("x" * 16_385, "16385 characters")])
async def test_an_empty_or_endless_question_is_refused(rig: Rig, query: str, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        await rig.retrieve(query)


@pytest.mark.parametrize("searching", [True, False])
async def test_a_cancel_forgets_the_question_and_says_where_it_was(rig: Rig, searching: bool) -> None:
    tasks = [asyncio.create_task(rig.retrieve("first", request_id="a"))]
    await rig.until_held(("a", "searching"))
    tasks.append(asyncio.create_task(rig.retrieve("second", request_id="b")))
    await rig.until_held(("a", "searching"), ("b", "queued"))
    request_id, phase = ("a", "searching") if searching else ("b", "queued")
    assert await rig.ask(Cancel("cancelled"), request_id=request_id) == CancelAck(held=True, phase=phase)
    assert request_id not in [held for held, _ in await rig.held()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_cancel_that_comes_first_wins(rig: Rig) -> None:
    rig.search.go.set()
    assert await rig.ask(Cancel("cancelled"), request_id="a") == CancelAck(held=False, phase="")
    with pytest.raises(Cancelled):
        await rig.retrieve("where?", request_id="a")
    assert rig.search.batches == []


async def test_a_search_that_crashes_is_an_answer_and_the_next_question_works(rig: Rig) -> None:
    rig.search.go.set()
    with pytest.raises(InternalError, match="log has the cause"):
        await rig.retrieve("crash")
    assert (await rig.retrieve("where?")).passages
    assert await rig.held() == []


async def test_a_panic_in_the_search_is_an_answer_and_the_next_life_of_the_actor_works(rig: Rig) -> None:
    rig.search.go.set()
    restarts = metric.total("penstock_actor_restarts_total")
    with pytest.raises(InternalError, match="log has the cause"):
        await rig.retrieve("panic")
    await until(lambda: metric.total("penstock_actor_restarts_total") == restarts + 1)
    assert (await rig.retrieve("where?")).passages
    assert await rig.held() == []


async def test_whose_question_is_cancelled_is_told_at_once(rig: Rig) -> None:
    asked = asyncio.create_task(rig.retrieve("first", request_id="a"))
    await rig.until_held(("a", "searching"))
    await rig.ask(Cancel("cancelled"), request_id="a")
    with pytest.raises(Cancelled):
        await asked


async def test_without_a_corpus_a_question_degrades_or_is_told_how_to_index(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(corpora=())
    assert await rig.retrieve("where?") == Retrieved((), "no corpus", 0, 0)
    with pytest.raises(NotFound, match="--corpus DIR"):
        await rig.retrieve("where?", may_degrade=False)


async def test_a_tenant_s_corpus_answers_others_word_for_word_as_one_that_is_not_there(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig([indexed("open"), indexed("secret", "acme")])
    rig.search.go.set()
    refusals = []
    for name in ("secret", "nowher"):
        with pytest.raises(NotFound) as caught:
            await rig.ask(Retrieve("where?", 1, True, corpus=name, tenant="rival"))
        refusals.append(caught.value.message.replace(name, "…"))
    assert refusals == ["there is no corpus '…': search one of open"] * 2
    assert isinstance(await rig.ask(Retrieve("where?", 1, True, corpus="secret", tenant="acme")), Retrieved)


async def test_among_several_corpora_a_question_has_to_name_one_of_those_that_it_may_search(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig([indexed("open"), indexed("a", "acme"), indexed("b", "rival")])
    rig.search.go.set()
    with pytest.raises(InvalidRequest, match="name one of open, a as the `corpus`"):
        await rig.ask(Retrieve("where?", 1, True, tenant="acme"))
    assert isinstance(await rig.ask(Retrieve("where?", 1, True)), Retrieved)  # without a tenant there is one


async def test_a_corpus_without_an_index_degrades_or_says_so_and_the_others_are_searched(
    make_rig: MakeRig,
) -> None:
    broken = ServedCorpus(NamedCorpus("broken", "/srv/secret-place"))
    rig = await make_rig([broken, indexed("whole")])
    rig.search.go.set()
    assert await rig.ask(Retrieve("where?", 1, True, corpus="broken")) == Retrieved((), "no corpus", 0, 0)
    with pytest.raises(NotFound, match="'broken' cannot be searched now: it is being indexed"):
        await rig.ask(Retrieve("where?", 1, False, corpus="broken"))
    broken.report_trouble("the folder /srv/secret-place does not exist")
    with pytest.raises(NotFound, match="its index cannot be used") as caught:
        await rig.ask(Retrieve("where?", 1, False, corpus="broken"))
    assert "secret-place" not in caught.value.message
    assert isinstance(await rig.ask(Retrieve("where?", 1, False, corpus="whole")), Retrieved)


@pytest.mark.parametrize(
    ("wrong", "pattern"),
    [
        ({"corpus": "x" * 65}, "at most 64 characters, not 65"),
        ({"filters": (("field", ()),)}, "a filter has 0 values"),
        ({"filters": (("field", ("v",) * 65),)}, "a filter has 65 values"),
        ({"filters": (("field", ("v" * 257,)),)}, "the longest text of 257"),
        ({"filters": (("f" * 257, ("v",)),)}, "the longest text of 257"),
        ({"filters": (("field", ("v",)),) * 17}, "17 filters were sent"),
    ],
)
async def test_names_and_filters_that_no_gateway_sends_are_refused(
    rig: Rig, wrong: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(InvalidRequest, match=pattern):
        await rig.ask(Retrieve("where?", 1, True, **wrong))


async def test_the_longest_name_and_filters_are_taken(make_rig: MakeRig) -> None:
    rig = await make_rig([indexed("x" * 64)])
    rig.search.go.set()
    filters = tuple(
        (f"{field}".rjust(256), tuple(f"{v}".rjust(256) for v in range(64))) for field in range(16)
    )
    assert isinstance(await rig.ask(Retrieve("?", 1, True, corpus="x" * 64, filters=filters)), Retrieved)


async def test_texts_are_embedded_also_without_a_corpus(make_rig: MakeRig) -> None:
    rig = await make_rig(corpora=())
    rig.search.go.set()
    assert await rig.ask(Embed(("a", "b"))) == Embedded((b"a", b"b"), (1, 1), (False, False))
    assert await rig.held() == []


async def test_questions_and_texts_take_turns(rig: Rig) -> None:
    calls = [asyncio.create_task(rig.retrieve("first", request_id="0"))]
    await rig.until_held(("0", "searching"))
    for number in (1, 2):
        calls.append(asyncio.create_task(rig.ask(Embed((f"text {number}",)), request_id=f"e{number}")))  # type: ignore[arg-type]
        await until(partial(_has, rig, f"e{number}"))
    calls.append(asyncio.create_task(rig.retrieve("second", request_id="1")))
    await until(partial(_has, rig, "1"))
    rig.search.go.set()
    await asyncio.gather(*calls)
    assert rig.search.batches == [["first"], ["text 1"], ["second"], ["text 2"]]


async def _has(rig: Rig, request_id: str) -> bool:
    return any(held == request_id for held, _ in await rig.held())


async def test_texts_that_are_cancelled_while_they_are_embedded_hold_nothing(rig: Rig) -> None:
    asked = asyncio.create_task(rig.ask(Embed(("a",)), request_id="a"))
    await rig.until_held(("a", "embedding"))
    assert await rig.ask(Cancel("cancelled"), request_id="a") == CancelAck(True, "searching")
    with pytest.raises(Cancelled):
        await asked
    assert await rig.held() == []


async def test_texts_that_wait_past_their_deadline_expire(rig: Rig) -> None:
    first = asyncio.create_task(rig.retrieve("first", seconds=100.0, request_id="a"))
    await rig.until_held(("a", "searching"))
    with pytest.raises(DeadlineExpired, match="embed"):
        await rig.ask(Embed(("late",)), seconds=0.3, request_id="b")
    rig.search.go.set()
    await first
    assert rig.search.batches == [["first"]]


async def test_an_embedding_that_breaks_fails_its_texts_and_the_next_ones_are_embedded(rig: Rig) -> None:
    rig.search.go.set()
    with pytest.raises(InternalError, match="log has the cause"):
        await rig.ask(Embed(("crash",)))
    assert isinstance(await rig.ask(Embed(("a",))), Embedded)


@pytest.mark.parametrize(
    ("texts", "pattern"),
    [((), "0 texts"), (("a",) * (MAX_EMBED_TEXTS + 1), f"1 to {MAX_EMBED_TEXTS}"), ((" ",), "blank")],
)
async def test_texts_that_no_gateway_sends_are_refused(
    rig: Rig, texts: tuple[str, ...], pattern: str
) -> None:
    with pytest.raises(InvalidRequest, match=pattern):
        await rig.ask(Embed(texts))


async def test_text_over_the_limit_is_refused(rig: Rig) -> None:
    rig.search.go.set()
    assert isinstance(await rig.ask(Embed(("a" * MAX_EMBED_TEXT_BYTES,))), Embedded)
    with pytest.raises(TooLarge, match="16384 bytes"):
        await rig.ask(Embed(("a" * (MAX_EMBED_TEXT_BYTES + 1),)))


async def test_texts_are_scored_also_without_a_corpus(make_rig: MakeRig) -> None:
    rig = await make_rig(corpora=())
    rig.search.go.set()
    answer = await rig.ask(RerankTexts("where?", ("a", "bcd")))
    assert answer == TextScores((1.0, 3.0), (1, 3), (False, False))
    assert await rig.held() == []


async def test_without_a_reranker_whoever_sends_texts_is_told_how_to_have_one(make_rig: MakeRig) -> None:
    rig = await make_rig(reranker="")
    with pytest.raises(NotFound, match="PENSTOCK_RETRIEVER_RERANKER"):
        await rig.ask(RerankTexts("where?", ("a",)))


async def test_scores_that_nobody_waits_for_are_given_up_and_hold_nothing(rig: Rig) -> None:
    asked = asyncio.create_task(rig.ask(RerankTexts("where?", ("a",)), request_id="a"))
    await rig.until_held(("a", "reranking"))
    assert await rig.ask(Cancel("cancelled"), request_id="a") == CancelAck(True, "searching")
    with pytest.raises(Cancelled):
        await asked
    assert await rig.held() == []
    assert rig.search.job is not None
    assert rig.search.job.dropped


@pytest.mark.parametrize(
    ("query", "texts", "pattern"),
    [
        ("where?", (), "0 texts"),
        ("where?", ("a",) * (MAX_RERANK_TEXTS + 1), f"1 to {MAX_RERANK_TEXTS}"),
        ("where?", ("a", " "), "text 1 is blank"),
        (" ", ("a",), "question is empty"),
    ],
)
async def test_texts_and_questions_that_no_gateway_sends_are_refused(
    rig: Rig, query: str, texts: tuple[str, ...], pattern: str
) -> None:
    with pytest.raises(InvalidRequest, match=pattern):
        await rig.ask(RerankTexts(query, texts))


async def test_texts_are_scored_for_a_question_up_to_its_limit(rig: Rig) -> None:
    rig.search.go.set()
    longest = "q" * MAX_QUERY_CHARS
    answer = await rig.ask(RerankTexts(longest, ("a",) * MAX_RERANK_TEXTS))
    assert isinstance(answer, TextScores)
    assert len(answer.scores) == MAX_RERANK_TEXTS
    with pytest.raises(TooLarge, match=f"{MAX_QUERY_CHARS + 1} characters"):
        await rig.ask(RerankTexts(longest + "q", ("a",)))
    with pytest.raises(TooLarge, match=f"{MAX_EMBED_TEXT_BYTES} bytes"):
        await rig.ask(RerankTexts("where?", ("a" * (MAX_EMBED_TEXT_BYTES + 1),)))


def index_again(corpus: Path, state_dir: Path) -> None:
    embedder = Embedder.load()
    build_index(str(corpus), state_dir, embedder, lambda *_: None, waiting=lambda _: None)


async def test_the_process_indexes_becomes_ready_answers_also_from_a_newer_index_and_drains(
    nats_url: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "gate.md").write_text("# Port\nThe port of the gate is 50051.\n\n# Soup\nCook the carrots.\n")
    process = retriever(
        nats_url, tmp_path, PENSTOCK_RETRIEVER_CORPUS=str(corpus), PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path)
    )
    bus = await Bus.connect(nats_url, name="asker")
    fleet = FleetView()
    await fleet.start(bus)
    try:
        await until(lambda: fleet.instances("retriever"), timeout_s=START_TIMEOUT_S)
        deadline = Deadline.after(20.0)
        wanted = Retrieve("Which port does the gate have?", 1, may_degrade=False)
        answer = await bus.ask(SUBJECT, wanted, bus.envelope("r", 1, deadline), deadline)
        assert isinstance(answer, Retrieved)
        (passage,) = answer.passages
        assert (passage.source, passage.text) == ("gate.md § Port", "The port of the gate is 50051.")
        assert answer.embed_us > 0
        texts = ("Which port?", "soup " * 300)
        vectors = await bus.ask(SUBJECT, Embed(texts), bus.envelope("e", 1, deadline), deadline)
        assert isinstance(vectors, Embedded)
        assert [len(vector) for vector in vectors.vectors] == [4 * DIMENSIONS] * 2
        assert vectors.tokens == (5, MAX_TOKENS)
        assert vectors.truncated == (False, True)
        beat = fleet.instances("retriever")[0].heartbeat
        assert (beat.model, beat.context_tokens) == (MODEL_NAME, MAX_TOKENS)

        (corpus / "gate.md").write_text("# Port\nThe port of the gate is 50052.\n")
        indexing = asyncio.create_task(asyncio.to_thread(index_again, corpus, tmp_path))

        async def found_anew() -> bool:
            deadline = Deadline.after(20.0)
            again = await bus.ask(SUBJECT, wanted, bus.envelope("r", 1, deadline), deadline)
            assert isinstance(again, Retrieved)
            (passage,) = again.passages
            return passage.text.endswith("50052.")

        await until(found_anew, timeout_s=START_TIMEOUT_S)
        await indexing
    finally:
        await fleet.stop()
        await bus.close()
        process.terminate()
        log = process.log_at_end(40)
    assert process.returncode == 0, log
    assert '"event": "indexed"' in log


async def test_where_no_corpus_can_be_searched_the_start_ends_with_a_sentence_of_each(
    nats_url: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    process = retriever(
        nats_url,
        tmp_path,
        PENSTOCK_RETRIEVER_CORPUS=f"{tmp_path / 'nowhere'}, empty={tmp_path / 'empty'}",
        PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path),
    )
    log = await asyncio.to_thread(process.log_at_end, START_TIMEOUT_S)
    assert process.returncode == 1
    assert f"penstock retriever: the folder {tmp_path / 'nowhere'} does not exist" in log
    assert f"; {tmp_path / 'empty'} has no readable document" in log


async def test_corpora_that_are_said_in_a_wrong_way_end_the_start_as_a_wrong_setting(
    nats_url: str, tmp_path: Path
) -> None:
    process = retriever(nats_url, tmp_path, PENSTOCK_RETRIEVER_CORPUS="/a,/b")
    log = await asyncio.to_thread(process.log_at_end, START_TIMEOUT_S)
    assert process.returncode == 2
    assert "penstock retriever: two corpora have the name 'default'" in log


async def test_one_that_cannot_be_indexed_leaves_the_others_in_service_and_is_said(
    nats_url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("The port of the gate is 50051.\n")
    corpora = f"whole={tmp_path / 'a.md'},broken@acme={tmp_path / 'nowhere'}"
    process = retriever(
        nats_url, tmp_path, PENSTOCK_RETRIEVER_CORPUS=corpora, PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path)
    )
    bus = await Bus.connect(nats_url, name="asker")
    fleet = FleetView()
    await fleet.start(bus)
    try:
        await until(lambda: fleet.instances("retriever"), timeout_s=START_TIMEOUT_S)
        beat = fleet.instances("retriever")[0].heartbeat
        assert [(report.name, report.passages, report.generation) for report in beat.retriever.corpora] == [
            ("whole", 1, 1),
            ("broken", 0, 0),
        ]
        trouble = beat.retriever.corpora[1].trouble
        assert trouble == f"the folder {tmp_path / 'nowhere'} does not exist; name one that does"
        deadline = Deadline.after(20.0)
        wanted = Retrieve("Which port?", 1, may_degrade=False)
        answer = await bus.ask(SUBJECT, wanted, bus.envelope("r", 1, deadline), deadline)
        assert isinstance(answer, Retrieved)
        assert (answer.corpus, answer.passages[0].metadata) == (
            "whole",
            (("source", "a.md"), ("suffix", "md")),
        )
    finally:
        await fleet.stop()
        await bus.close()
        process.terminate()
        log = process.log_at_end(40)
    assert process.returncode == 0, log
    assert '"event": "corpus_not_indexed"' in log


def retriever(nats_url: str, folder: Path, **environ: str) -> ForkedProcess:
    settings = {"PENSTOCK_NATS_URL": nats_url, "PENSTOCK_INSTANCE": "retriever-0", "OMP_NUM_THREADS": "1"}
    log = folder / "retriever.log"
    return start_forked("services.retriever", {**os.environ, **settings, **environ}, log)


@pytest.mark.thorough
async def test_the_process_says_how_far_its_indexing_is(nats_url: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    sections = (f"# Part {part}\nSentences of part {part} are here.\n" for part in range(1500))
    (corpus / "parts.md").write_text("\n".join(sections))
    steps: list[tuple[str, int]] = []

    def hear(delivery: Delivery) -> None:
        if isinstance(beat := delivery.message, Heartbeat):
            steps.append((beat.state, beat.steps))

    bus = await Bus.connect(nats_url, name="listener")
    await bus.serve(FLEET_ALL, hear)
    process = retriever(
        nats_url, tmp_path, PENSTOCK_RETRIEVER_CORPUS=str(corpus), PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path)
    )
    try:
        await until(lambda: [step for state, step in steps if state == "loading" and step], START_TIMEOUT_S)
        assert max(step for _, step in steps) <= 1500
    finally:
        await bus.close()
        process.kill()
        process.wait(60)


def heartbeats_of(beats: list[Heartbeat]) -> Callable[[Delivery], None]:
    def hear(delivery: Delivery) -> None:
        if isinstance(beat := delivery.message, Heartbeat):
            beats.append(beat)

    return hear


async def test_who_is_told_to_end_while_it_indexes_ends_between_two_parts_and_keeps_what_it_has(
    nats_url: str, tmp_path: Path
) -> None:
    sections = (f"# Part {part}\nSentences of part {part} are here.\n" for part in range(6000))
    (tmp_path / "parts.md").write_text("\n".join(sections))
    beats: list[Heartbeat] = []
    bus = await Bus.connect(nats_url, name="listener")
    await bus.serve(FLEET_ALL, heartbeats_of(beats))
    process = retriever(
        nats_url,
        tmp_path,
        PENSTOCK_RETRIEVER_CORPUS=str(tmp_path / "parts.md"),
        PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path),
    )
    try:
        await until(lambda: [beat for beat in beats if beat.steps], START_TIMEOUT_S)
        process.terminate()
        log = await asyncio.to_thread(process.log_at_end, 60)
    finally:
        await bus.close()
        process.kill()
    assert process.returncode == 0, log  # it was not ended by force
    assert '"event": "indexing_stopped"' in log
    assert '"event": "indexed"' not in log


@pytest.mark.thorough
async def test_corpora_that_can_be_searched_wait_no_longer_than_they_are_told_for_those_that_cannot(
    nats_url: str, tmp_path: Path
) -> None:
    for name in ("one", "held"):
        (tmp_path / f"{name}.md").write_text(f"Words of {name}.\n")
    folder = index_folder(tmp_path, str(tmp_path / "held.md"))
    folder.mkdir()
    beats: list[Heartbeat] = []
    bus = await Bus.connect(nats_url, name="asker")
    await bus.serve(FLEET_ALL, heartbeats_of(beats))

    def served() -> dict[str, int]:
        """The passages of each corpus, once it is ready."""
        ready = [beat for beat in beats if beat.state == "ready"]
        return {report.name: report.passages for report in ready[-1].retriever.corpora} if ready else {}

    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = retriever(
            nats_url,
            tmp_path,
            PENSTOCK_RETRIEVER_CORPUS=f"held={tmp_path / 'held.md'},one={tmp_path / 'one.md'}",
            PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path),
            PENSTOCK_RETRIEVER_INDEX_WAIT_S="0",
        )
        try:
            await until(lambda: served() == {"held": 0, "one": 1}, START_TIMEOUT_S)
            deadline = Deadline.after(20.0)
            wanted = Retrieve("words", 1, may_degrade=True, corpus="held")
            answer = await bus.ask(SUBJECT, wanted, bus.envelope("r", 1, deadline), deadline)
            assert answer == Retrieved((), "no corpus", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_UN)
            await until(lambda: served() == {"held": 1, "one": 1}, START_TIMEOUT_S)
        finally:
            await bus.close()
            process.terminate()
            log = await asyncio.to_thread(process.log_at_end, 60)
    assert process.returncode == 0, log
    assert log.count('"event": "index_awaited"') == 1


async def test_a_folder_that_is_gone_is_searched_as_it_was_and_its_corpus_says_so(
    nats_url: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.md").write_text("The port of the gate is 50051.\n")
    await asyncio.to_thread(index_again, corpus, tmp_path)
    corpus.rename(tmp_path / "elsewhere")
    process = retriever(
        nats_url, tmp_path, PENSTOCK_RETRIEVER_CORPUS=str(corpus), PENSTOCK_RETRIEVER_STATE_DIR=str(tmp_path)
    )
    bus = await Bus.connect(nats_url, name="asker")
    fleet = FleetView()
    await fleet.start(bus)
    try:
        await until(lambda: fleet.instances("retriever"), timeout_s=START_TIMEOUT_S)
        (report,) = fleet.instances("retriever")[0].heartbeat.retriever.corpora
        assert (report.passages, report.generation) == (1, 1)
        assert report.trouble.startswith(f"the folder {corpus} does not exist")
        deadline = Deadline.after(20.0)
        wanted = Retrieve("Which port?", 1, may_degrade=False)
        answer = await bus.ask(SUBJECT, wanted, bus.envelope("r", 1, deadline), deadline)
        assert isinstance(answer, Retrieved)
        assert answer.passages[0].text == "The port of the gate is 50051."
    finally:
        await fleet.stop()
        await bus.close()
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
