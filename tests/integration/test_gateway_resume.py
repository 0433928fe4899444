"""A stream goes on at a gateway that did not begin it: the test is the workers, and says what they kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.keys.keys_in_force import NOBODY
from services.gateway.request.resume_token import ResumeTokens
from shared.deadline import SYSTEM_CLOCK
from shared.errors import StreamLost
from shared.messages import (
    ALL_EMITTED,
    NO_ADAPTER,
    HandedOver,
    Message,
    Open,
    Reserve,
    TakeOver,
    pack_ids,
    unpack_ids,
)
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Fleet, Running, default_answer, fleet, gateway
from tests.integration.test_gateway_api_keys import Client, write
from tests.support.client import Answer, generate
from tests.support.http import call, http_client
from tests.support.metric import value
from tests.support.sampling import sampling
from tests.support.wait import until

PROMPT = (104, 101, 108, 108, 111)
DRAWN = (97, 98, 99)
OLD = "gateway-0.abcdef"
LEFT_S = 60.0
PATIENCE_S = 60.0
LOST = StreamLost("not here", hop="decode")
RESUMED = "penstock_resumed_streams_total"


@pytest.fixture(autouse=True)
def patient_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers answer at once here, which takes longer than a second where others keep the machine busy."""
    monkeypatch.setattr("services.gateway.prompt.stream_takeover.TAKE_OVER_S", PATIENCE_S)


def asked(**fields: Any) -> pb.GenerateRequest:
    sampling_of = fields.pop("sampling", pb.Sampling(max_tokens=8))
    return pb.GenerateRequest(**{"text": "hello", "resumable": True, "sampling": sampling_of, **fields})


def resume(
    received: int = 2, left_s: float = LEFT_S, message: pb.GenerateRequest | None = None
) -> pb.ResumeRequest:
    """Return the message of a client whose gateway is gone."""
    message = message or asked()
    tokens = ResumeTokens.of("", NOBODY, message, "")
    token = tokens.make(OLD, SYSTEM_CLOCK.unix_us() + round(left_s * 1e6))
    return pb.ResumeRequest(token=token, received_tokens=received, request=message)


def keeping(drawn: tuple[int, ...] = DRAWN, *, finished: bool = False) -> Callable[[Message], PeerAnswer]:
    """Decode workers that have the stream."""
    stream = HandedOver(
        pack_ids((*PROMPT, *drawn)), len(PROMPT), sampling(max_tokens=8, seed=77), NO_ADAPTER, finished
    )
    return lambda message: stream if isinstance(message, TakeOver) else default_answer(message)


async def resumed(running: Running, request: pb.ResumeRequest, **options: Any) -> Answer:
    answer = Answer()
    try:
        async for event in running.stub.Resume(request, timeout=30, **options):
            answer.add(event, 0.0)
    except grpc.aio.AioRpcError as error:
        answer.status, answer.details = error.code(), error.details() or ""
    return answer


async def go_on(
    peers: Fleet, running: Running, request: pb.ResumeRequest, *rows: tuple[int, str, str]
) -> Answer:
    """Resume, and let the workers say these (position in the output, text, finish)."""
    await running.knows("decode", 1)
    stream = asyncio.create_task(resumed(running, request))
    envelope, _ = await peers.placed()
    for at, text, finish in rows:
        await peers.text(envelope.request_id, len(PROMPT) + at, text, finish=finish)
    return await stream


# ---- where it goes on ----


async def test_a_stream_goes_on_with_the_tokens_that_its_client_has(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping()
        answer = await go_on(peers, running, resume(2), (2, "c", ""), (3, "d", "stop"))
        ((_, opened),) = peers["detokenizer-0"].of(Open)
        ((_, reserve),) = peers["decode-0"].of(Reserve)
        ((envelope, _),) = peers["decode-0"].of(TakeOver)
    assert isinstance(opened, Open)
    assert isinstance(reserve, Reserve)
    assert (answer.text, answer.positions, answer.outcome) == ("cd", [7, 8], "finished")
    assert (unpack_ids(opened.replay), opened.emitted_chars, opened.next_position) == (
        [97, 98],
        ALL_EMITTED,
        7,
    )
    assert (unpack_ids(reserve.token_ids), reserve.prompt_len) == ([*PROMPT, 97, 98], 5)
    assert (reserve.sampling.seed, reserve.resumable, envelope.request_id) == (77, True, OLD)
    assert answer.end is not None
    assert (answer.end.usage.prompt_tokens, answer.end.usage.completion_tokens) == (5, 4)


async def test_its_client_is_told_a_new_id_and_token(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping()
        request = resume(2)
        answer = await go_on(peers, running, request, (2, "c", "stop"))
    assert answer.prompt is not None
    assert answer.prompt.request_id.startswith("gateway-t.")
    assert answer.prompt.resume_token not in ("", request.token)
    assert (answer.prompt.seed, answer.prompt.prompt_tokens) == (77, 5)


async def test_tokens_that_decode_does_not_know_yet_come_again_and_are_not_told_twice(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping(())
        answer = await go_on(peers, running, resume(1), (0, "a", ""), (1, "b", "stop"))
    assert (answer.text, answer.positions) == ("b", [6])
    assert answer.end is not None
    assert answer.end.usage.completion_tokens == 2


async def test_a_row_that_its_client_has_a_part_of_ends_the_stream_by_name(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping(())
        answer = await go_on(peers, running, resume(1), (0, "ab", ""))
    assert answer.end is not None
    assert (answer.end.error.code, answer.text) == ("stream_lost", "")


async def test_a_client_that_has_all_of_a_finished_stream_gets_its_end_alone(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping(finished=True)
        answer = await go_on(peers, running, resume(3), (2, "c", "stop"))
    assert (answer.text, answer.ids, answer.finish_reason) == ("", [], "stop")
    assert answer.end is not None
    assert answer.end.usage.completion_tokens == 3


# ---- where it cannot ----


async def test_a_stream_that_nobody_has_is_lost_by_name(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = lambda message: LOST if isinstance(message, TakeOver) else None
        await running.knows("decode", 1)
        answer = await resumed(running, resume())
    assert answer.status is grpc.StatusCode.NOT_FOUND
    assert answer.end is not None
    assert (answer.end.error.code, "send the request again" in answer.end.error.message) == (
        "stream_lost",
        True,
    )


async def test_a_worker_that_does_not_answer_may_have_the_stream(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.prompt.stream_takeover.TAKE_OVER_S", 0.1)
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = lambda _: None
        await running.knows("decode", 1)
        answer = await resumed(running, resume())
    assert answer.status is grpc.StatusCode.UNAVAILABLE
    assert answer.end is not None
    assert answer.end.error.retry_after_ms > 0


@pytest.mark.thorough(but="<lambda>-resume-resumed")
@pytest.mark.parametrize(
    ("answers", "request_of", "result"),
    [
        (keeping(), resume, "resumed"),
        (lambda message: LOST if isinstance(message, TakeOver) else None, resume, "stream_lost"),
        (keeping(), lambda: resume(left_s=-1.0), "expired"),
        (keeping(), lambda: resume(received=99), "invalid_request"),
    ],
)
async def test_what_becomes_of_a_resume_is_counted(
    nats_url: str,
    answers: Callable[[Message], PeerAnswer],
    request_of: Callable[[], pb.ResumeRequest],
    result: str,
) -> None:
    before = value(RESUMED, result=result)
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = answers
        await running.knows("decode", 1)
        stream = asyncio.create_task(resumed(running, request_of()))
        if result == "resumed":
            envelope, _ = await peers.placed()
            await peers.text(envelope.request_id, len(PROMPT) + 2, "c", finish="stop")
        await stream
    assert value(RESUMED, result=result) == before + 1


async def test_a_token_of_another_request_takes_nothing_over(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await running.knows("decode", 1)
        request = resume()
        request.request.text = "another"
        answer = await resumed(running, request)
        assert peers["decode-0"].of(TakeOver) == []
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_time_counts_from_the_first_arrival(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping()
        await running.knows("decode", 1)
        began_s = time.monotonic()
        answer = await resumed(running, resume(left_s=0.3))
    assert answer.outcome == "expired"
    assert time.monotonic() - began_s >= 0.25


# ---- ends ----


async def test_a_stream_that_ended_is_forgotten_by_decode(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, asked()))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, "a", finish="stop")
        answer = await stream
        await until(lambda: peers.cancels().get("decode-0") == [(1, "delivered")])
    assert answer.prompt is not None
    assert answer.prompt.resume_token


async def test_a_request_that_does_not_ask_for_it_has_no_token_and_no_cancel(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, asked(resumable=False)))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, "a", finish="stop")
        answer = await stream
        await until(lambda: not running.registry.audit().held)
        assert peers.cancels() == {}
    assert answer.prompt is not None
    assert answer.prompt.resume_token == ""


async def test_a_stream_that_is_taken_over_ends_as_cancelled_and_is_not_routed_again(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, asked()))
        envelope, _ = await peers.placed()
        await peers.lost(envelope.request_id, 1, "stream_taken_over")
        answer = await stream
        assert len(peers["decode-0"].of(Reserve)) == 1
    assert (answer.outcome, answer.status) == ("cancelled", grpc.StatusCode.CANCELLED)


async def test_a_gateway_that_stops_leaves_its_streams_to_another(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        stream = asyncio.create_task(generate(running.stub, asked()))
        plain = asyncio.create_task(generate(running.stub, asked(resumable=False, text="plain")))
        await until(lambda: len(peers["detokenizer-0"].of(Open)) == 2)
        await until(lambda: all(session.state.running for session in running.registry.live_sessions(2)))
        await running.registry.cancel_sessions(5.0)
        answer, other = await stream, await plain
        assert {reason for _, reason in peers.cancels()["decode-0"]} == {"shutdown", "cancelled"}
    assert answer.end is not None
    assert (answer.end.error.code, other.outcome) == ("gateway_stopping", "cancelled")
    assert answer.status is grpc.StatusCode.UNAVAILABLE


async def test_a_resumed_stream_is_cancelled_by_the_id_that_it_began_with(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = keeping()
        await running.knows("decode", 1)
        stream = asyncio.create_task(resumed(running, resume()))
        await peers.placed()
        assert (await running.stub.Cancel(pb.CancelRequest(request_id=OLD))).found
        assert (await stream).outcome == "cancelled"


# ---- keys ----


async def test_a_resumed_stream_is_not_counted_again(nats_url: str, tmp_path: Path) -> None:
    ours, theirs = Client("a", "acme", requests_per_min=1), Client("b", "other")
    message = asked()
    tokens = ResumeTokens.of("", ours.key, message, "")
    token = tokens.make(OLD, SYSTEM_CLOCK.unix_us() + 60_000_000)
    request = pb.ResumeRequest(token=token, received_tokens=2, request=message)
    keys = write(tmp_path / "keys.toml", ours, theirs)
    async with fleet(nats_url) as peers, gateway(nats_url, api_keys=keys) as running:
        peers["decode-0"].answers = keeping()
        await running.knows("decode", 1)
        stream = asyncio.create_task(generate(running.stub, message, metadata=ours.metadata))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, "a", finish="stop")
        assert (await stream).outcome == "finished"  # the only one of this minute
        peers["decode-0"].got.clear()
        peers["prefill-0"].got.clear()
        again = asyncio.create_task(resumed(running, request, metadata=ours.metadata))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 7, "c", finish="stop")
        assert (await again).text == "c"
        foreign = await resumed(running, request, metadata=theirs.metadata)
    assert foreign.status is grpc.StatusCode.INVALID_ARGUMENT


# ---- over HTTP ----

BODY = {"prompt": "hello", "max_tokens": 8, "stream": True, "penstock": {"resumable": True}}


async def post(running: Running, body: dict[str, Any], last_id: str = "") -> tuple[int, str]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with (
        http_client(running.http.address) as client,
        client.post("/v1/completions", json=body, headers=headers) as response,
    ):
        return response.status, await response.text()


async def test_events_of_a_resumable_stream_have_ids_and_others_have_none(nats_url: str) -> None:
    for body, ids in ((BODY, True), ({**BODY, "penstock": {}}, False)):
        async with fleet(nats_url) as peers, gateway(nats_url) as running:
            await running.knows("decode", 1)
            stream = asyncio.create_task(post(running, body))
            envelope, prefill = await peers.placed()
            await peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
            status, text = await stream
        assert status == 200
        assert ("\nid: " in f"\n{text}") is ids
        assert not ids or f"id: {envelope.request_id}~" in text


async def test_events_go_on_after_the_last_id(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await running.knows("decode", 1)
        stream = asyncio.create_task(post(running, BODY))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
        _, first = await stream
        last_id = next(line for line in first.splitlines() if line.startswith("id: ")).removeprefix("id: ")
        assert last_id.endswith("~2~2")
        peers["decode-0"].answers = keeping()
        for peer in peers.peers.values():
            peer.got.clear()
        again = asyncio.create_task(post(running, BODY, last_id))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 7, "c", finish="stop")
        status, text = await again
    assert status == 200
    assert '"text": "c"' in text
    assert '"text": "ab"' not in text
    names = {
        line.split('"id": "')[1].split('"')[0] for line in (first + text).splitlines() if '"id": "' in line
    }
    assert len(names) == 1


@pytest.mark.thorough(but="x~-1~2 | x~9999999999~2")
@pytest.mark.parametrize(
    "last_id", ["x", "x~1", "x~1~a", "x~1~2", f"{'x' * 600}~1~2", "x~-1~2", "x~9999999999~2"]
)
async def test_an_id_that_is_none_of_ours_is_refused(nats_url: str, last_id: str) -> None:
    async with gateway(nats_url) as running:
        status, text = await post(running, BODY, last_id)
    assert (status, "invalid_request_error" in text) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("completions", {**BODY, "n": 2}, "n 1"),
        ("completions", {**BODY, "stream": False}, "stream true"),
        ("responses", {"input": "hi", "stream": True, "penstock": {"resumable": True}}, "completions"),
    ],
)
async def test_what_cannot_be_resumed_is_refused_by_name(
    nats_url: str, path: str, body: dict[str, Any], told: str
) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        reply = await call(client, f"/v1/{path}", body)
    assert reply.status == 400
    assert reply.error["param"] == "penstock.resumable"
    assert told in reply.error["message"]
