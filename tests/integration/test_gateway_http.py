"""The HTTP edge: OpenAI's interfaces over the same sessions as gRPC, with a real client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from shared.errors import Overloaded, TooLarge, Unavailable
from shared.messages import (
    Message,
    Open,
    Prefill,
    Reserve,
    SpellTokens,
    Tokenize,
    TokenSpellings,
    pack_hashes,
    unpack_ids,
)
from shared.sampling import Grammar, TokenLogprob
from tests.integration.gateway_peers import (
    Answer,
    Fleet,
    Running,
    ask,
    default_answer,
    fleet,
    gateway,
)
from tests.support.block_names import hashes_of
from tests.support.client import generate
from tests.support.http import Reply, call, events, http_client
from tests.support.metric import value
from tests.support.wait import until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ALL_THREE = {"decode-0", "prefill-0", "detokenizer-0"}


@dataclass(slots=True)
class Edge:
    peers: Fleet
    running: Running
    client: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        return await call(self.client, path, body, **headers)

    def begin(self, path: str, body: Any, **headers: str) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.post(path, body, **headers))

    async def answered(self, path: str, body: Any, **headers: str) -> Reply:
        """With the text "ab" in two tokens."""
        reply = self.begin(path, body, **headers)
        envelope, prefill = await self.peers.placed()
        await self.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
        return await reply

    async def idle(self) -> None:
        await until(lambda: self.running.registry.audit().held == ())


@asynccontextmanager
async def edge(nats_url: str, **options: object) -> AsyncIterator[Edge]:
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url, **options) as running,
        http_client(running.http.address) as client,
    ):
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield Edge(peers, running, client)


# ---- answers ----------------------------------------------------------------------------------------


async def test_a_chat_is_answered_in_one_body_with_exact_usage(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.answered(CHAT, {**HELLO, "model": "test-model"})
    body = reply.body
    assert (reply.status, body["object"], body["model"]) == (200, "chat.completion", "test-model")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert body["id"] == f"chatcmpl-{reply.headers['x-request-id']}"


async def test_a_text_is_continued_in_one_body(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = here.begin(TEXT, {"prompt": "hello"})
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "ab", finish="length")
        body = (await reply).body
    assert (body["object"], body["id"]) == ("text_completion", f"cmpl-{envelope.request_id}")
    assert body["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}]


async def test_an_echo_stands_in_front_of_the_text(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.answered(TEXT, {"prompt": "hello", "echo": True})
    assert reply.body["choices"][0]["text"] == "helloab"


async def test_a_stream_brings_each_token_when_it_comes(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(CHAT, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked as response:
            coming = events(response)
            first, a = await anext(coming), await anext(coming)
            await here.peers.text(envelope.request_id, 6, "b")
            b = await anext(coming)
            await here.peers.text(envelope.request_id, 7, "", ids=(), finish="length")
            rest = [event async for event in coming]
    assert response.content_type == "text/event-stream"
    assert [event["choices"][0]["delta"] for event in (first, a, b)] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
    ]
    assert [event["choices"][0]["finish_reason"] for event in (first, a, b, rest[0])] == [
        None,
        None,
        None,
        "length",
    ]
    assert rest[1:] == ["[DONE]"]
    assert {(event["object"], event["id"]) for event in (first, a, b, rest[0])} == {
        ("chat.completion.chunk", f"chatcmpl-{envelope.request_id}")
    }
    assert "usage" not in first


async def streamed(here: Edge, path: str, body: dict[str, Any]) -> list[Any]:
    """All events of an answer "ab"."""
    asked = asyncio.create_task(here.client.post(path, json={**body, "stream": True}))
    envelope, prefill = await here.peers.placed()
    await here.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
    async with await asked as response:
        return [event async for event in events(response)]


async def test_a_stream_of_text_begins_with_the_echo_and_ends_with_usage_where_it_is_wanted(
    nats_url: str,
) -> None:
    body = {"prompt": "hello", "echo": True, "stream_options": {"include_usage": True}}
    async with edge(nats_url) as here:
        *chunks, last, done = await streamed(here, TEXT, body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "helloab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (last["choices"], last["usage"]["total_tokens"], done) == ([], 7, "[DONE]")


async def test_events_are_ascii_so_that_no_separator_of_unicode_ends_a_line(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(TEXT, json={"prompt": "hello", "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "\u2028é\n", finish="stop")
        async with await asked as response:
            raw = await response.read()
    assert raw.isascii()
    assert json.loads(raw.split(b"\n\n")[0].removeprefix(b"data: "))["choices"][0]["text"] == "\u2028é\n"


async def test_choices_are_requests_of_their_own_and_their_prompt_counts_once(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = here.begin(CHAT, {**HELLO, "n": 2, "seed": 7})
        await until(lambda: len(here.peers["detokenizer-0"].of(Open)) == 2)
        await until(lambda: len(here.peers["prefill-0"].of(Prefill)) == 2)
        for envelope, message in here.peers["prefill-0"].of(Prefill):
            assert isinstance(message, Prefill)
            await here.peers.text(envelope.request_id, 5, f"{message.sampling.seed}", finish="stop")
        body = (await reply).body
    assert [choice["message"]["content"] for choice in body["choices"]] == ["7", "8"]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 2


async def test_choices_of_a_stream_come_beside_each_other_and_end_once(nats_url: str) -> None:
    async with edge(nats_url) as here:
        body = {"prompt": ["one", "three"], "stream": True, "stream_options": {"include_usage": True}}
        asked = asyncio.create_task(here.client.post(TEXT, json=body))
        await until(lambda: len(here.peers["prefill-0"].of(Prefill)) == 2)
        await until(lambda: len(here.peers["detokenizer-0"].of(Open)) == 2)
        for envelope, message in here.peers["prefill-0"].of(Prefill):
            assert isinstance(message, Prefill)
            await here.peers.text(envelope.request_id, message.prompt_len, "x", finish="stop")
        async with await asked as response:
            *chunks, last, _ = [event async for event in events(response)]
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1]
    assert last["usage"]["prompt_tokens"] == len("one") + len("three")


async def test_sampling_stops_and_formats_reach_the_workers(nats_url: str) -> None:
    body = {"top_k": 5, "logit_bias": {"7": 3}, "seed": 9, "max_completion_tokens": 4, "stop": ["END"]}
    async with edge(nats_url) as here:
        reply = here.begin(CHAT, {**HELLO, **body, "response_format": {"type": "json_object"}})
        envelope, prefill = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "{}", finish="stop")
        assert (await reply).status == 200
        ((_, opened),) = here.peers["detokenizer-0"].of(Open)
    sampling = prefill.sampling
    assert (sampling.top_k, sampling.logit_bias, sampling.seed) == (5, ((7, 3.0),), 9)
    assert (sampling.max_tokens, sampling.grammar) == (4, Grammar("json_object"))
    assert isinstance(opened, Open)
    assert opened.stop == ("END",)


async def test_the_timeline_comes_under_a_key_of_its_own_when_it_is_asked_for(nats_url: str) -> None:
    async with edge(nats_url) as here:
        whole = (await here.answered(CHAT, HELLO, x_penstock_timeline="1")).body
        here.peers["prefill-0"].got.clear()
        *_, last, _ = await streamed(here, CHAT, {**HELLO, "penstock": {"timeline": True}})
    for body in (whole, last):
        (request,) = body["penstock"]["requests"]
        timeline = request["timeline"]
        assert request["request_id"] == body["id"].removeprefix("chatcmpl-")
        assert sum(phase["duration_us"] for phase in timeline["phases"]) == timeline["total_us"]
        assert 0 < timeline["ttft_us"] <= timeline["total_us"]
        assert request["usage"]["cached_tokens"] == 3


async def test_a_salt_keeps_kv_among_those_that_send_it(nats_url: str) -> None:
    prompt = {"prompt": "x" * 64}
    async with edge(nats_url) as here:
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}):
            here.peers["prefill-0"].got.clear()
            assert (await here.answered(TEXT, {**prompt, **salt})).status == 200
            here.peers["tokenizer-0"].got.append(here.peers["prefill-0"].of(Prefill)[0])
        names = [m.block_hashes for _, m in here.peers["tokenizer-0"].of(Prefill) if isinstance(m, Prefill)]
    assert names[1] == names[2]
    assert len(set(names)) == 3


def spelled(message: Message) -> Answer:
    """Half of a character for 300 and 301, else the character of the id."""
    if not isinstance(message, SpellTokens):
        return default_answer(message)
    bytes_of = {300: b"\xc3", 301: b"\xa9"}
    return TokenSpellings(
        tuple(bytes_of.get(each) or chr(each).encode() for each in unpack_ids(message.token_ids))
    )


LOGPROBS = (
    TokenLogprob(300, -0.5, ((300, -0.5), (98, -1.5))),
    TokenLogprob(301, -0.25, ((301, -0.25), (97, -2.5))),
)


async def test_logprobs_of_a_chat_show_tokens_as_text_and_as_bytes(nats_url: str) -> None:
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = spelled
        reply = here.begin(CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2})
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "é", ids=(300, 301), logprobs=LOGPROBS, finish="stop")
        (choice,) = (await reply).body["choices"]
    first, second = choice["logprobs"]["content"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("\ufffd", [0xC3], -0.5)
    assert first["top_logprobs"][1] == {"token": "b", "bytes": [98], "logprob": -1.5}
    assert bytes(first["bytes"] + second["bytes"]).decode() == choice["message"]["content"]


async def test_logprobs_of_a_text_are_columns_and_come_in_each_chunk_of_a_stream(nats_url: str) -> None:
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = spelled
        body = {"prompt": "hello", "logprobs": 1, "stream": True}
        asked = asyncio.create_task(here.client.post(TEXT, json=body))
        envelope, _ = await here.peers.placed()
        tokens = [TokenLogprob(97, -1.0, ((97, -1.0),)), TokenLogprob(98, -2.0, ((99, -0.5),))]
        await here.peers.text(envelope.request_id, 5, "a", logprobs=(tokens[0],))
        async with await asked as response:
            coming = events(response)
            first = await anext(coming)
            await here.peers.text(envelope.request_id, 6, "b", logprobs=(tokens[1],), finish="stop")
            second = await anext(coming)
            assert [event async for event in coming][-1] == "[DONE]"
    assert [chunk["choices"][0]["logprobs"] for chunk in (first, second)] == [
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]},
        {"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": [{"c": -0.5}], "text_offset": [1]},
    ]


async def test_spellings_are_asked_for_once_and_of_another_tokenizer_when_one_fails(nats_url: str) -> None:
    def fails(message: Message) -> Answer:
        return Unavailable("not now") if isinstance(message, SpellTokens) else default_answer(message)

    async with edge(nats_url) as here:
        await here.peers.add("tokenizer", 1)
        await here.running.knows("tokenizer", 2)
        here.peers["tokenizer-0"].answers, here.peers["tokenizer-1"].answers = fails, spelled
        for _ in range(3):
            here.peers["prefill-0"].got.clear()
            reply = here.begin(CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2})
            envelope, _ = await here.peers.placed()
            await here.peers.text(
                envelope.request_id, 5, "é", ids=(300, 301), logprobs=LOGPROBS, finish="stop"
            )
            assert (await reply).status == 200
        assert len(here.peers["tokenizer-1"].of(SpellTokens)) == 1


async def test_a_salt_holds_for_what_was_generated_when_a_request_is_placed_anew(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = here.begin(TEXT, {"prompt": "hello", "cache_salt": "a"})
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "x" * 20)
        await here.peers.lost(envelope.request_id, 1)
        _, again = await here.peers.placed(epoch=2)
        await here.peers.text(envelope.request_id, 25, "y", epoch=2, finish="stop")
        assert (await reply).body["choices"][0]["text"] == "x" * 20 + "y"
    ids = [ord(letter) for letter in "hello" + "x" * 20]
    names = [pack_hashes(hashes_of(ids, "", scope)) for scope in ("\0a", "")]
    assert again.block_hashes == names[0] != names[1]


# ---- errors -----------------------------------------------------------------------------------------


async def test_a_wrong_field_is_a_400_that_names_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post(CHAT, {**HELLO, "temperature": 3e9, "top_p": 7})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == "top_p"
    assert "send a finite number" in reply.error["message"]


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
        client.post(TEXT, data=data) as response,
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
            return Overloaded("no seat", hop="decode", retry_after_ms=90_000)
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
        monkeypatch.setattr(here.running.registry, "open_session", None)
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
    before = value("penstock_requests_total", outcome="failed")
    async with gateway(nats_url) as running, http_client(running.http.address) as client:
        assert (await call(client, CHAT, {"messages": []})).status == 400
    assert value("penstock_requests_total", outcome="failed") == before + 1


# ---- clients that do not read -----------------------------------------------------------------------


MUCH_TEXT = 900_000
"""Of one row, below what a message on the bus may have; nine of them are more than sockets take."""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_take_the_end_of_its_answer_loses_its_connection(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("services.gateway.response_relay.WRITE_GRACE_S", 0.2)
    for module in ("call", "event_stream"):
        monkeypatch.setattr(f"services.gateway.http.{module}.FLUSH_TIMEOUT_S", 0.3)
    body = {"prompt": "hello", "stream": stream, "penstock": {"deadline_ms": 2000}}
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
    async with edge(nats_url) as here:
        open_before = value("penstock_http_connections")
        host, _, port = here.running.http.address.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, head + data)
            envelope, _ = await here.peers.placed()
            for number in range(9):
                await here.peers.text(envelope.request_id, 5 + number, "x" * MUCH_TEXT, ids=(7,))
            await here.peers.text(envelope.request_id, 14, "", ids=(), finish="stop")
            assert value("penstock_http_connections") == open_before + 1
            await until(lambda: value("penstock_http_connections") == open_before)
        await here.idle()


# ---- cancelling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dropped_connection_cancels_exactly_the_holders(nats_url: str, stream: bool) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, {**HELLO, "stream": stream})
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        asked.cancel()
        await asyncio.wait([asked])
        await here.idle()
        await until(lambda: set(here.peers.cancels()) == ALL_THREE)
    assert {reason for told in here.peers.cancels().values() for _, reason in told} == {"cancelled"}


async def test_a_dropped_connection_ends_all_choices(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, {**HELLO, "n": 3})
        await until(lambda: len(here.peers["prefill-0"].of(Prefill)) == 3)
        asked.cancel()
        await here.idle()


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
async def test_a_request_is_cancelled_by_its_id_and_ends_as_499(nats_url: str, prefix: str) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(CHAT, HELLO)
        envelope, _ = await here.peers.placed()
        path = f"/v1/requests/{prefix}{envelope.request_id}/cancel"
        cancelled = await here.post(path, {})
        reply = await asked
        await here.idle()
        late = await here.post(path, {})
    assert (cancelled.status, cancelled.body["cancelled"]) == (200, True)
    assert (reply.status, reply.error["code"]) == (499, "cancelled")
    assert reply.headers["x-should-retry"] == "false"
    assert (late.status, late.error["code"]) == (404, "request_not_found")
    assert set(here.peers.cancels()) == ALL_THREE


async def test_a_client_that_does_not_read_is_cancelled(nats_url: str) -> None:
    async with edge(nats_url, max_buffered_tokens=100) as here:
        asked = asyncio.create_task(here.client.post(CHAT, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked:  # its head has come; the body is left where it is
            position = 6
            while here.running.registry.audit().held and position < 5_000_000:
                await here.peers.text(envelope.request_id, position, "x" * 10_000, ids=tuple(range(20)))
                position += 20
            await here.idle()
        assert position < 5_000_000
        await until(lambda: set(here.peers.cancels()) == ALL_THREE)


async def test_a_request_over_grpc_and_one_over_http_share_the_room(nats_url: str) -> None:
    async with edge(nats_url, max_sessions=1) as here:
        asked = here.begin(CHAT, HELLO)
        envelope, _ = await here.peers.placed()
        refused = await generate(here.running.stub, ask("hello"))
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await asked).status == 200
    assert refused.outcome == "shed"
