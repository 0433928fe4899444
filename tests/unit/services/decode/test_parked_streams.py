"""Streams that wait for another gateway: whose they are, how long and how many, and their worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from services.decode import parked_streams
from services.decode.parked_streams import PARKED_S, ParkedStream, ParkedStreams
from shared.errors import StreamLost
from shared.messages import (
    NO_ADAPTER,
    Cancel,
    Failure,
    HandedOver,
    Lost,
    TakeOver,
    pack_ids,
    unpack_ids,
)
from tests.support.clock import FakeClock
from tests.support.noted_bus import REPLY
from tests.support.sampling import sampling
from tests.unit.services.decode.test_local_prompts import GATEWAY, PROMPT, LocalWorker


def stream(tenant: str = "", epoch: int = 1, ids: tuple[int, ...] = (1, 2, 3)) -> ParkedStream:
    how = sampling(max_tokens=16)
    return ParkedStream("gateway-0", epoch, tenant, pack_ids(ids), 2, how, NO_ADAPTER, finished=False)


def test_a_stream_is_given_away_once() -> None:
    streams, kept = ParkedStreams(), stream()
    streams.keep("r", kept)
    assert (streams.take("r", ""), streams.take("r", "")) == (kept, None)


def test_a_stream_is_given_to_its_own_tenant_alone() -> None:
    streams = ParkedStreams()
    streams.keep("r", stream("ours"))
    assert streams.take("r", "theirs") is None
    assert streams.take("r", "ours") is not None


@pytest.mark.parametrize(("waited_s", "there"), [(PARKED_S - 0.001, True), (PARKED_S, False)])
def test_a_stream_is_lost_when_its_lease_has_passed(waited_s: float, there: bool) -> None:
    clock = FakeClock()
    streams = ParkedStreams(clock)
    streams.keep("r", stream())
    clock.advance(waited_s)
    assert bool(streams.held()) is there
    assert (streams.take("r", "") is not None) is there


def test_the_oldest_stream_makes_room_for_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_streams, "MAX_PARKED_STREAMS", 2)
    streams = ParkedStreams()
    for request_id in ("a", "b", "c"):
        streams.keep(request_id, stream())
    assert [held.request_id for held in streams.held()] == ["b", "c"]


def test_the_oldest_stream_makes_room_for_one_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_streams, "MAX_PARKED_TOKENS", 6)
    streams = ParkedStreams()
    streams.keep("a", stream())
    streams.keep("b", stream())
    assert len(streams.held()) == 2
    streams.keep("c", stream(ids=(1,)))
    assert [held.request_id for held in streams.held()] == ["b", "c"]


@pytest.mark.parametrize(
    ("epoch", "gateway", "there"),
    [(1, "gateway-0", False), (1, "", False), (0, "gateway-0", True), (1, "gateway-1", True)],
)
def test_a_cancel_of_its_gateway_forgets_a_stream(epoch: int, gateway: str, there: bool) -> None:
    streams = ParkedStreams()
    streams.keep("r", stream())
    assert streams.drop("r", epoch, gateway) is not there
    assert bool(streams.held()) is there


# ---- at the worker ----


@pytest.fixture
async def worker(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalWorker]:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = LocalWorker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def begin(worker: LocalWorker, tokens: int = 3, *, resumable: bool = True) -> None:
    """A stream of which the detokenizer has so many tokens."""
    await worker.compute(resumable=resumable)
    while worker.decoded() < tokens:
        await worker.step()


async def take_over(worker: LocalWorker) -> HandedOver:
    await worker.send(TakeOver(""), epoch=0)
    answer = worker.sent.to(REPLY)[-1]
    assert isinstance(answer, HandedOver)
    return answer


async def test_a_running_stream_is_handed_over_with_all_its_tokens(worker: LocalWorker) -> None:
    await begin(worker)
    sent = worker.ids()
    stream = await take_over(worker)
    assert unpack_ids(stream.token_ids) == PROMPT + sent
    assert (stream.prompt_len, stream.finished, stream.sampling.max_tokens) == (len(PROMPT), False, 40)


async def test_the_first_gateway_hears_that_its_stream_was_taken_over(worker: LocalWorker) -> None:
    await begin(worker)
    await take_over(worker)
    (lost,) = (told for told in worker.sent.to(GATEWAY) if isinstance(told, Lost))
    assert lost.code == "stream_taken_over"
    await worker.step()
    assert list(worker.held()) == []


async def test_a_stream_of_a_dead_gateway_waits_without_kv(worker: LocalWorker) -> None:
    await begin(worker)
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    await worker.step()
    assert worker.kinds_held() == {"parked"}
    assert not (await take_over(worker)).finished


async def test_a_stream_that_ended_waits_until_its_end_is_delivered(worker: LocalWorker) -> None:
    await worker.compute(resumable=True)
    await worker.until_over()
    await worker.send(Cancel("stop"))
    assert worker.kinds_held() == {"parked"}
    await worker.send(Cancel("delivered"))
    assert worker.kinds_held() == set()


async def test_a_finished_stream_says_so(worker: LocalWorker) -> None:
    await worker.compute(resumable=True)
    await worker.until_over()
    stream = await take_over(worker)
    assert (stream.finished, len(unpack_ids(stream.token_ids))) == (True, len(PROMPT) + 40)


@pytest.mark.parametrize("reason", ["cancelled", "expired", "failed", "replaced"])
async def test_a_stream_that_was_ended_is_lost(worker: LocalWorker, reason: str) -> None:
    await begin(worker)
    await worker.send(Cancel(reason))
    await worker.send(TakeOver(""), epoch=0)
    assert cast("Failure", worker.sent.to(REPLY)[-1]).code == StreamLost.code


async def test_a_request_that_cannot_be_resumed_is_lost_with_its_gateway(worker: LocalWorker) -> None:
    await begin(worker, resumable=False)
    await worker.send(TakeOver(""), epoch=0)
    assert cast("Failure", worker.sent.to(REPLY)[-1]).code == StreamLost.code
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    await worker.step()
    assert list(worker.held()) == []
