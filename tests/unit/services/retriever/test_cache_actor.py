"""The cache's actor: what it is given it finds again, for whom and as long as that is right."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.retriever.cache_actor import MAX_KEPT_VECTORS, MAX_WAITING, CacheActor
from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from services.retriever.served_corpus import ServedCorpus
from shared.config.named_corpus import NamedCorpus
from shared.deadline import Deadline
from shared.messages import (
    CACHE_DIGEST_BYTES,
    Cancel,
    Failure,
    KeepResponse,
    KeptResponse,
    LookUpResponse,
    Message,
    ResponseFound,
    ResponseKey,
    ResponseMissing,
)
from shared.process.service import Service
from shared.retrieval.encoders.embedder import DIMENSIONS, EmbeddedQuestions
from shared.retrieval.index.passage_index import PassageIndex
from tests.support import metric
from tests.support.clock import FakeClock
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.wait import until

RESPONSE = KeptResponse("r", "m", 0, 3, bytes(8), "answer", "stop")
KEY = ResponseKey("acme", b"e" * CACHE_DIGEST_BYTES, b"n" * CACHE_DIGEST_BYTES)


class Rig:
    """A running actor, and the corpora that are searched: one for everybody, one for a single tenant."""

    def __init__(self, **config: object) -> None:
        self.bus = NotedBus()
        self.clock = FakeClock()
        self.corpora = [
            ServedCorpus(NamedCorpus("shared", "/shared")),
            ServedCorpus(NamedCorpus("own", "/own", ("rival",))),
        ]
        for corpus in self.corpora:
            corpus.replace_index(PassageIndex((), np.zeros((0, 8), np.float32)), 1)
        self.embedded: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        settings = RetrieverConfig(**config)  # type: ignore[arg-type]  # its own fields
        self.service = Service("retriever", settings, "retriever-0")
        self.service.bus = self.bus
        self.actor = self.service.supervisor.start(
            lambda: CacheActor(self.service, self.embed, Corpora(self.corpora), self.clock)
        )

    def index_again(self, place: int = 0) -> None:
        self.corpora[place].replace_index(
            PassageIndex((), np.zeros((0, 8), np.float32)), self.corpora[place].generation + 1
        )

    def embed(self, questions: Sequence[str], tenants: Sequence[str]) -> EmbeddedQuestions:
        """The length of a question is its angle, in hundredths; "long" is too long, "broken" breaks."""
        assert len(tenants) == len(questions)
        self.embedded.append(list(questions))
        assert self.go.wait(60)
        if "broken?" in questions:
            raise RuntimeError("the encoder is broken")
        vectors = np.zeros((len(questions), DIMENSIONS), dtype=np.float32)
        for row, question in enumerate(questions):
            angle = len(question) / 100
            vectors[row, :2] = math.cos(angle), math.sin(angle)
        return EmbeddedQuestions(
            vectors, ["long" in question for question in questions], [1.0] * len(questions)
        )

    async def ask(self, message: Message, *, seconds: float = 60.0) -> Message:
        before = len(self.bus.noted.sent)
        self.actor.living.receive(self.bus.asked(message, "a", 1, seconds=seconds))
        await until(lambda: len(self.bus.noted.sent) > before)
        sent = self.bus.noted.sent[before]
        assert sent.subject == REPLY
        return sent.message

    async def keep(
        self, key: ResponseKey = KEY, *, retrieves: bool = False, generation: str = "shared/1"
    ) -> None:
        """And wait until it has been taken in."""
        self.actor.living.receive(self.bus.asked(KeepResponse(key, RESPONSE, retrieves, generation), "a", 1))
        await self.ask(LookUpResponse(replace(KEY, tenant="nobody"), retrieves=False))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.service.supervisor.stop(Deadline.after(5.0))


async def test_an_answer_is_found_again_with_its_age(rig: Rig) -> None:
    assert await rig.ask(LookUpResponse(KEY, retrieves=False)) == ResponseMissing("shared/1")
    await rig.keep()
    rig.clock.advance(1.5)
    assert await rig.ask(LookUpResponse(KEY, retrieves=False)) == ResponseFound(RESPONSE, 1500, 1.0)


async def test_another_tenant_finds_nothing(rig: Rig) -> None:
    await rig.keep()
    other = replace(KEY, tenant="other")
    assert isinstance(await rig.ask(LookUpResponse(other, retrieves=False)), ResponseMissing)


async def test_a_new_index_invalidates_what_was_answered_from_the_old_one(rig: Rig) -> None:
    await rig.keep(retrieves=True)
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=True)), ResponseFound)
    rig.index_again()
    assert await rig.ask(LookUpResponse(KEY, retrieves=True)) == ResponseMissing("shared/2")


async def test_an_answer_from_an_index_that_has_been_replaced_is_not_kept(rig: Rig) -> None:
    stale = metric.value("penstock_response_cache_stores_total", result="stale")
    await rig.keep(retrieves=True, generation="shared/0")
    assert await rig.ask(LookUpResponse(KEY, retrieves=True)) == ResponseMissing("shared/1")
    assert metric.value("penstock_response_cache_stores_total", result="stale") == stale + 1


async def test_a_new_index_leaves_what_was_answered_without_one(rig: Rig) -> None:
    await rig.keep()
    rig.index_again()
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=False)), ResponseFound)


async def test_a_new_index_of_one_corpus_leaves_what_was_answered_from_another(rig: Rig) -> None:
    key = replace(KEY, tenant="rival")
    lookup = LookUpResponse(key, retrieves=True, corpus="own")
    assert await rig.ask(lookup) == ResponseMissing("own/1")
    await rig.keep(key, retrieves=True, generation="own/1")
    rig.index_again(0)
    assert isinstance(await rig.ask(lookup), ResponseFound)
    rig.index_again(1)
    assert await rig.ask(lookup) == ResponseMissing("own/2")


@pytest.mark.parametrize(("corpus", "tenant"), [("own", "acme"), ("nowhere", "acme"), ("", "rival")])
async def test_a_corpus_that_a_tenant_cannot_search_has_no_generation_and_no_answers(
    rig: Rig, corpus: str, tenant: str
) -> None:
    key = replace(KEY, tenant=tenant)
    await rig.keep(key, retrieves=True, generation="own/1")
    lookup = LookUpResponse(key, retrieves=True, corpus=corpus)
    assert await rig.ask(lookup) == ResponseMissing("")


async def test_an_answer_from_passages_of_no_corpus_is_not_kept(rig: Rig) -> None:
    await rig.keep(retrieves=True, generation="")
    lookup = LookUpResponse(KEY, retrieves=True, corpus="nowhere")
    assert await rig.ask(lookup) == ResponseMissing("")


async def test_a_lookup_that_comes_too_late_is_not_begun(rig: Rig) -> None:
    answer = await rig.ask(LookUpResponse(KEY, retrieves=False), seconds=-1.0)
    assert isinstance(answer, Failure)
    assert answer.code == "expired"


async def test_what_is_not_for_a_cache_is_refused_and_the_next_lookup_works(rig: Rig) -> None:
    assert isinstance(await rig.ask(Cancel("cancelled")), Failure)
    assert isinstance(await rig.ask(LookUpResponse(replace(KEY, exact=b""), retrieves=False)), Failure)
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=False)), ResponseMissing)


async def test_a_cache_without_room_answers_that_it_has_nothing() -> None:
    rig = Rig(cache_mb=0)
    before = metric.value("penstock_response_cache_stores_total", result="too_large")
    await rig.keep()
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=False)), ResponseMissing)
    assert metric.value("penstock_response_cache_stores_total", result="too_large") == before + 1
    await rig.service.supervisor.stop(Deadline.after(5.0))


def near(question: str, tenant: str = "acme", rest: bytes = b"n") -> ResponseKey:
    exact = question.encode().ljust(CACHE_DIGEST_BYTES)[:CACHE_DIGEST_BYTES]
    return ResponseKey(tenant, exact, rest * CACHE_DIGEST_BYTES, question)


async def compare(rig: Rig, key: ResponseKey, least: float = 0.99, max_age_ms: int = 0) -> Message:
    return await rig.ask(LookUpResponse(key, False, max_age_ms, least))


async def missed_and_kept(rig: Rig, key: ResponseKey, **keep: Any) -> None:
    assert isinstance(await compare(rig, key), ResponseMissing)
    await rig.keep(key, **keep)


async def test_the_answer_to_a_similar_question_is_found_with_its_similarity(rig: Rig) -> None:
    await missed_and_kept(rig, near("where is it"))
    found = await compare(rig, near("where is it then"))
    assert isinstance(found, ResponseFound)
    assert found.response == RESPONSE
    assert found.similarity == pytest.approx(math.cos(0.05))


@pytest.mark.parametrize(
    ("asked", "least"),
    [
        (near("where is it then"), 0.9995),
        (near("where is it then", tenant="other"), 0.99),
        (near("where is it then", rest=b"o"), 0.99),
        (near("where is it not"), 0.99),
        (near("where is it 7"), 0.99),
    ],
    ids=["threshold", "tenant", "parameters", "negation", "number"],
)
async def test_what_is_not_near_enough_in_every_way_is_missed(
    rig: Rig, asked: ResponseKey, least: float
) -> None:
    await missed_and_kept(rig, near("where is it"))
    assert isinstance(await compare(rig, asked, least), ResponseMissing)


async def test_without_a_word_of_its_own_a_request_gets_the_configured_similarity() -> None:
    rig = Rig(cache_min_similarity=0.9995)
    await missed_and_kept(rig, near("where is it"))
    assert isinstance(await compare(rig, near("where is it then"), 0.0), ResponseMissing)
    assert isinstance(await compare(rig, near("where is it ?"), 0.0), ResponseFound)
    await rig.service.supervisor.stop(Deadline.after(5.0))


async def test_the_nearest_that_is_young_enough_is_given(rig: Rig) -> None:
    await missed_and_kept(rig, near("where is it"))
    rig.clock.advance(10.0)
    assert isinstance(await compare(rig, near("where is it then"), max_age_ms=9000), ResponseMissing)
    assert isinstance(await compare(rig, near("where is it then"), max_age_ms=11_000), ResponseFound)


async def test_a_new_index_invalidates_similar_questions_too(rig: Rig) -> None:
    await missed_and_kept(rig, near("where is it"), retrieves=True)
    rig.index_again()
    assert await compare(rig, near("where is it then")) == ResponseMissing("shared/2")


async def test_a_question_that_is_pushed_out_is_not_found_any_more() -> None:
    rig = Rig(cache_entries=1)
    await missed_and_kept(rig, near("where is it"))
    await missed_and_kept(rig, near("a very different question of another length"))
    assert isinstance(await compare(rig, near("where is it then")), ResponseMissing)
    await rig.service.supervisor.stop(Deadline.after(5.0))


async def test_a_question_longer_than_the_encoder_takes_is_not_compared(rig: Rig) -> None:
    await missed_and_kept(rig, near("a long way to it"))
    assert isinstance(await compare(rig, near("a long way to it then")), ResponseMissing)
    assert isinstance(await compare(rig, near("a long way to it")), ResponseFound)


async def test_an_encoder_that_breaks_is_a_miss_and_the_next_question_is_compared(rig: Rig) -> None:
    assert isinstance(await compare(rig, near("broken?")), ResponseMissing)
    await missed_and_kept(rig, near("where is it"))
    assert isinstance(await compare(rig, near("where is it then")), ResponseFound)


async def test_questions_that_wait_for_the_encoder_are_embedded_together_and_late_ones_not(rig: Rig) -> None:
    rig.go.clear()
    for number, seconds in ((1, 60.0), (2, 60.0), (3, 0.05), (4, 60.0)):
        question = f"question {number}"
        lookup = LookUpResponse(near(question), retrieves=False)
        rig.actor.living.receive(rig.bus.asked(lookup, question, 1, seconds=seconds))
        if number == 1:
            await until(lambda: rig.embedded)
    late = Deadline.after(0.05)
    await until(late.expired)
    rig.go.set()
    await until(lambda: len(rig.bus.noted.sent) == 4)
    assert rig.embedded == [["question 1"], ["question 2", "question 4"]]
    codes = [sent.message.code for sent in rig.bus.noted.sent if isinstance(sent.message, Failure)]
    assert codes == ["expired"]


async def test_while_the_encoder_is_busy_the_same_request_is_found_at_once(rig: Rig) -> None:
    await rig.keep()
    rig.go.clear()
    lookup = LookUpResponse(near("where is it"), retrieves=False)
    rig.actor.living.receive(rig.bus.asked(lookup, "first", 1))
    await until(lambda: rig.embedded)
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=False)), ResponseFound)
    rig.go.set()


async def test_more_lookups_than_may_wait_are_misses_at_once(rig: Rig) -> None:
    rig.go.clear()
    for number in range(MAX_WAITING + 1):
        lookup = LookUpResponse(near(f"question {number}"), retrieves=False)
        rig.actor.living.receive(rig.bus.asked(lookup, "a", 1))
        if not number:
            await until(lambda: rig.embedded)
    assert isinstance(await compare(rig, near("one more")), ResponseMissing)
    rig.go.set()


async def test_lookups_of_one_tenant_that_wait_leave_room_for_those_of_another(rig: Rig) -> None:
    rig.go.clear()
    for number in range(MAX_WAITING + 1):
        lookup = LookUpResponse(near(f"question {number}", "loud"), retrieves=False)
        rig.actor.living.receive(rig.bus.asked(lookup, f"loud {number}", 1))
        if not number:
            await until(lambda: rig.embedded)
    for number in range(MAX_WAITING // 2):
        before = len(rig.bus.noted.sent)
        lookup = LookUpResponse(near(f"quiet question {number}", "quiet"), retrieves=False)
        rig.actor.living.receive(rig.bus.asked(lookup, f"quiet {number}", 1))
        await until(lambda before=before: len(rig.bus.noted.sent) > before)  # type: ignore[misc]
    rig.go.set()
    await until(lambda: len(rig.bus.noted.sent) == MAX_WAITING + 1 + MAX_WAITING // 2)
    assert sum("quiet" in question for batch in rig.embedded for question in batch) == MAX_WAITING // 2


async def test_vectors_of_a_tenant_s_misses_leave_those_of_another(rig: Rig) -> None:
    assert isinstance(await compare(rig, near("where is it", "quiet")), ResponseMissing)
    for number in range(MAX_KEPT_VECTORS):
        assert isinstance(await compare(rig, near(f"question {number}", "loud")), ResponseMissing)
    await rig.keep(near("where is it", "quiet"))
    assert isinstance(await compare(rig, near("where is it then", "quiet")), ResponseFound)
