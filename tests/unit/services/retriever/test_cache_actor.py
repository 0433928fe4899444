"""The cache's actor: what it is given it finds again, for whom and as long as that is right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from services.retriever.cache_actor import CacheActor
from services.retriever.config import RetrieverConfig
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
from shared.service import Service
from tests.support import metric
from tests.support.clock import FakeClock
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.wait import until

RESPONSE = KeptResponse("r", "m", 0, 3, bytes(8), "answer", "stop")
KEY = ResponseKey("acme", b"e" * CACHE_DIGEST_BYTES, b"n" * CACHE_DIGEST_BYTES)


class Rig:
    """A running actor, and the generation of the index that is searched."""

    def __init__(self, **config: object) -> None:
        self.bus = NotedBus()
        self.clock = FakeClock()
        self.generation = "1"
        settings = RetrieverConfig(**config)  # type: ignore[arg-type]  # its own fields
        self.service = Service("retriever", settings, "retriever-0")
        self.service.bus = self.bus
        self.actor = self.service.supervisor.start(
            lambda: CacheActor(self.service, lambda: self.generation, self.clock)
        )

    async def ask(self, message: Message, *, seconds: float = 60.0) -> Message:
        before = len(self.bus.noted.sent)
        self.actor.receive(self.bus.asked(message, "a", 1, seconds=seconds))
        await until(lambda: len(self.bus.noted.sent) > before)
        sent = self.bus.noted.sent[before]
        assert sent.subject == REPLY
        return sent.message

    async def keep(self, key: ResponseKey = KEY, *, retrieves: bool = False, generation: str = "1") -> None:
        """And wait until it has been taken in."""
        self.actor.receive(self.bus.asked(KeepResponse(key, RESPONSE, retrieves, generation), "a", 1))
        await self.ask(LookUpResponse(replace(KEY, tenant="nobody"), retrieves=False))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.service.supervisor.stop(Deadline.after(5.0))


async def test_an_answer_is_found_again_with_its_age(rig: Rig) -> None:
    assert await rig.ask(LookUpResponse(KEY, retrieves=False)) == ResponseMissing("1")
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
    rig.generation = "2"
    assert await rig.ask(LookUpResponse(KEY, retrieves=True)) == ResponseMissing("2")


async def test_an_answer_from_an_index_that_has_been_replaced_is_not_kept(rig: Rig) -> None:
    stale = metric.value("penstock_response_cache_stores_total", result="stale")
    await rig.keep(retrieves=True, generation="0")
    assert await rig.ask(LookUpResponse(KEY, retrieves=True)) == ResponseMissing("1")
    assert metric.value("penstock_response_cache_stores_total", result="stale") == stale + 1


async def test_a_new_index_leaves_what_was_answered_without_one(rig: Rig) -> None:
    await rig.keep()
    rig.generation = "2"
    assert isinstance(await rig.ask(LookUpResponse(KEY, retrieves=False)), ResponseFound)


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
