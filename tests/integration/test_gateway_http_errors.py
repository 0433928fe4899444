"""What an error is over HTTP: its status, its code, and the field that it is about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from shared.errors import Overloaded, TooLarge
from shared.messages import (
    Message,
    Reserve,
    Tokenize,
)
from tests.integration.gateway_peers import Answer, default_answer, gateway
from tests.integration.http_edge import CHAT, HELLO, TEXT, edge
from tests.support.http import call, events, http_client
from tests.support.metric import total


async def test_a_wrong_field_is_a_400_that_names_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post(CHAT, {**HELLO, "temperature": 3e9, "top_p": 7})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == "top_p"
    assert "send a finite number" in reply.error["message"]


@pytest.mark.thorough(but="{ | body5")
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"temperature": NaN}', b"[" * 100_000])
async def test_what_is_no_json_object_is_a_400(nats_url: str, body: bytes) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        reply = await call(client, CHAT, body)
    assert (reply.status, reply.error["param"]) == (400, None)
    assert "send" in reply.error["message"]


async def test_an_unknown_model_is_a_404_with_the_served_one_named(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post(CHAT, {**HELLO, "model": "gpt"})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
    assert "test-model" in reply.error["message"]


async def test_a_path_that_is_none_is_a_404_and_a_wrong_method_a_405(nats_url: str) -> None:
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        nowhere = await call(client, "/v2/chat", {})
        wrong = await call(client, CHAT)
        outside = await call(client, CHAT, method="OPTIONS")
    assert (nowhere.status, nowhere.error["code"]) == (404, "unknown_url")
    assert (wrong.status, wrong.error["code"], wrong.headers["Allow"]) == (405, "method_not_allowed", "POST")
    assert outside.status == 405


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413(nats_url: str, chunked: bool) -> None:
    body = json.dumps({"prompt": "x" * 3000}).encode()

    async def in_chunks() -> AsyncIterator[bytes]:
        yield body[:100]
        yield body[100:]

    data = in_chunks() if chunked else body
    async with (
        gateway(nats_url, max_request_bytes=2048) as running,
        http_client(running.http.address) as client,
        client.post(TEXT, data=data, headers={"content-type": "application/json"}) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (413, "too_large")
    assert "2048 bytes" in error["message"]


async def test_a_prompt_over_a_limit_of_a_worker_is_a_413(nats_url: str) -> None:
    def answers(message: Message) -> Answer:
        return TooLarge("the prompt is too long: shorten it") if isinstance(message, Tokenize) else None

    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = answers
        reply = await here.post(CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (413, "too_large")


async def test_a_shed_request_is_a_429_that_says_when_to_come_back(nats_url: str) -> None:
    async with edge(nats_url, max_sessions=1) as here:
        first = here.begin(CHAT, HELLO)
        envelope, _ = await here.peers.placed()
        refused = await here.post(CHAT, {**HELLO, "stream": True})
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await first).status == 200
    assert (refused.status, refused.error["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after-ms"]) > 0
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_stream_that_is_shed_before_its_first_token_is_a_429_too(nats_url: str) -> None:
    def answers(message: Message) -> Answer:
        if isinstance(message, Reserve):
            return Overloaded("no slot", hop="decode", retry_after_ms=90_000)
        return default_answer(message)

    async with edge(nats_url) as here:
        here.peers["decode-0"].answers = answers
        reply = await here.post(CHAT, {**HELLO, "stream": True, "penstock": {"ttft_deadline_ms": 2000}})
        await here.idle()
    assert (reply.status, reply.headers["Retry-After"]) == (429, "90")


async def test_no_choice_is_begun_when_there_is_no_room_for_all(nats_url: str) -> None:
    async with edge(nats_url, max_sessions=2) as here:
        reply = await here.post(CHAT, {**HELLO, "n": 3})
        await here.idle()
    assert reply.status == 429


async def test_a_passed_deadline_is_a_504_that_no_client_repeats(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post(CHAT, {**HELLO, "stream": True}, x_penstock_ttft_deadline_ms="300")
        await here.idle()
    assert (reply.status, reply.error["code"], reply.error["hop"]) == (504, "deadline_expired", "prefill")
    assert reply.headers["x-should-retry"] == "false"


async def test_without_a_worker_in_time_it_is_a_503(nats_url: str) -> None:
    async with gateway(nats_url, admit_wait_s=0.0) as running, http_client(running.http.address) as client:
        reply = await call(client, CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (503, "unavailable")


async def test_a_bug_is_a_500_without_details(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(nats_url) as here:
        monkeypatch.setattr(here.running.registry, "open_sessions", None)
        reply = await here.post(CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert "not callable" not in reply.error["message"]


async def test_an_error_after_the_first_token_is_an_event_of_the_stream(nats_url: str) -> None:
    async with edge(nats_url) as here:
        body = {**HELLO, "stream": True, "penstock": {"deadline_ms": 1500}}
        asked = asyncio.create_task(here.client.post(CHAT, json=body))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked as response:
            *_, last, done = [event async for event in events(response)]
    assert response.status == 200
    assert last["error"]["code"] == "deadline_expired"
    assert done == "[DONE]"


async def test_a_refusal_counts_as_one_request(nats_url: str) -> None:
    before = total("penstock_requests_total", outcome="failed")
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        assert (await call(client, CHAT, {"messages": []})).status == 400
    assert total("penstock_requests_total", outcome="failed") == before + 1
