"""Numbers from a worker that cannot be: the request still ends once, and no other one feels it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from shared.messages import Accepted, Mark, Message, Reserve
from tests.integration.gateway_peers import Answer, ask, default_answer, fleet, gateway
from tests.integration.http_edge import CHAT, HELLO, edge
from tests.support.client import generate
from tests.support.http import events
from tests.support.wait import until

WRONG_MARKS = [1 << 33, -5000, -1, (1 << 64) - 1]
WRONG_IDS = [(-1,), (1 << 40,), (97, -3)]


def impossible_hit(message: Message) -> Answer:
    """Answer as a worker that has cached less than nothing of a prompt."""
    return Accepted(cached_tokens=-7) if isinstance(message, Reserve) else default_answer(message)


@pytest.mark.thorough(but="count:draft_proposed--1 | prefill.compute-18446744073709551615")
@pytest.mark.parametrize("value", WRONG_MARKS)
@pytest.mark.parametrize("name", ["prefill.compute", "count:draft_proposed"])
async def test_a_mark_that_cannot_be_is_left_out(nats_url: str, name: str, value: int) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        answering = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", marks=(Mark(name, value),), finish="stop")
        answer = await answering
    assert (answer.outcome, answer.ends, answer.text) == ("finished", 1, "a")
    assert answer.end is not None
    assert answer.end.usage.draft_tokens == 0


@pytest.mark.thorough(but="ids1")
@pytest.mark.parametrize("ids", WRONG_IDS)
async def test_ids_that_cannot_be_end_their_request_once_and_no_other(
    nats_url: str, ids: tuple[int, ...]
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        answering = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", ids=ids)
        answer = await answering
        await until(lambda: running.registry.audit().held == ())
        other = asyncio.create_task(generate(running.stub, ask("other")))
        await until(lambda: bool(running.registry.audit().held))
        other_id = running.registry.audit().held[0].request_id
        await until(lambda: any(e.request_id == other_id for e, _ in peers["prefill-0"].got))
        await peers.text(other_id, 5, "b", finish="stop")
        assert (await other).text == "b"
    assert (answer.outcome, answer.ends, answer.status) == ("failed", 1, grpc.StatusCode.INTERNAL)


async def test_a_word_of_the_end_that_is_not_known_ends_the_stream_once_and_is_named(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        answering = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="filtered")
        answer = await answering
        await until(lambda: running.registry.audit().held == ())
    assert (answer.outcome, answer.ends, answer.text) == ("failed", 1, "a")
    assert answer.end is not None
    assert "'filtered'" in answer.end.error.message


async def test_a_fault_at_the_end_of_a_call_ends_it_in_one_terminal_event(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.session.session.Session.usage", _fails)
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        answering = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await answering
        await until(lambda: running.registry.audit().held == ())
    assert (answer.outcome, answer.ends, answer.text) == ("failed", 1, "a")
    assert answer.status is grpc.StatusCode.INTERNAL


async def test_a_fault_in_a_stream_over_http_is_its_last_event(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.session.session.Session.usage", _fails)
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(CHAT, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        async with await asked as response:
            *_, last, done = [event async for event in events(response)]
    assert (response.status, last["error"]["code"], done) == (200, "internal_error", "[DONE]")


async def test_nothing_is_written_into_an_answer_that_has_begun(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the edge itself: its client sees a cut stream, never the head of another answer."""
    monkeypatch.setattr("services.gateway.http.completions.answer.Answer.end_stream", _fails)
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"messages": [{"role": "user", "content": "hello"}], "stream": true}'
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\n\r\n".encode()
            + body
        )
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        try:
            got = await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            got = b"HTTP/1.1 200"
        finally:
            writer.close()
        await here.idle()
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 500" not in got


async def test_a_wrong_number_of_cached_tokens_ends_the_request_once(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = impossible_hit
        answering = asyncio.create_task(generate(running.stub, ask()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await answering
    assert (answer.ends, answer.text) == (1, "a")


def _fails(*_: Any) -> Any:
    raise ValueError("a bug")
