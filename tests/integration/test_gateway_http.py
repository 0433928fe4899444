"""The HTTP edge: OpenAI's interfaces over the same sessions as gRPC, with a real client."""

from __future__ import annotations

import asyncio
import errno
import json
import socket

from shared.messages import (
    Open,
    Prefill,
    Reserve,
    pack_hashes,
)
from shared.sampling.parameters import Grammar
from tests.integration.http_edge import CHAT, HELLO, TEXT, edge, streamed
from tests.support.block_hashes import hashes_of
from tests.support.http import events
from tests.support.wait import until

TIMEOUT_S = 60
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


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


async def test_each_chunk_of_a_stream_has_the_usage_so_far_where_it_is_wanted(nats_url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with edge(nats_url) as here:
        body = {"prompt": "hello", "stream": True, "stream_options": options}
        asked = asyncio.create_task(here.client.post(TEXT, json=body))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked as response:
            stream = events(response)
            first = await anext(stream)
            await here.peers.text(envelope.request_id, 6, "b", finish="stop")
            *rest, last, _ = [event async for event in stream]
    assert first["usage"] == {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    assert rest[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert last["usage"]["total_tokens"] == 7


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


async def test_a_salt_keeps_kv_and_answers_among_those_that_send_it(nats_url: str) -> None:
    prompt = {"prompt": "x" * 64}
    async with edge(nats_url) as here:
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}):
            here.peers["prefill-0"].got.clear()
            assert (await here.answered(TEXT, {**prompt, **salt})).status == 200
            here.peers["tokenizer-0"].got.append(here.peers["prefill-0"].of(Prefill)[0])
        names = [m.block_hashes for _, m in here.peers["tokenizer-0"].of(Prefill) if isinstance(m, Prefill)]
        scopes = [m.answer_scope for _, m in here.peers["decode-0"].of(Reserve) if isinstance(m, Reserve)]
    for each in (names, scopes):
        assert each[1] == each[2]
        assert len(set(each)) == 3


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


async def test_who_has_connected_as_the_port_is_left_is_still_answered_once(nats_url: str) -> None:
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        leaving = asyncio.create_task(here.running.http.leave_port())
        await until(lambda: refuses(host, int(port)))
        writer.write(HEALTH)
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reader.read()  # to the end of the connection
            await leaving
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_who_asks_again_as_the_port_is_left_is_told_that_the_connection_ends(nats_url: str) -> None:
    """A client that keeps its connection sends the next request at any time."""
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(HEALTH)
            first = await reader.readuntil(b"\r\n\r\n")
            leaving = asyncio.create_task(here.running.http.leave_port())
            await until(lambda: refuses(host, int(port)))
            writer.write(HEALTH)
            second = await reader.read()  # to the end of the connection
            await leaving
        writer.close()
        assert b"connection: close" not in first.lower()
        assert b"HTTP/1.1 200 " in second
        assert b"connection: close" in second.lower()


async def test_who_does_not_ask_again_as_the_port_is_left_is_disconnected(nats_url: str) -> None:
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(HEALTH)
            await reader.readuntil(b"\r\n\r\n")
            await here.running.http.leave_port()
            await reader.read()
        writer.close()


async def test_a_stream_that_ends_as_the_port_is_left_leaves_room_for_one_more_request(nats_url: str) -> None:
    """Its head was sent before anybody knew that the connection ends."""
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(posted({"prompt": "hello", "stream": True}))
            envelope, _ = await here.peers.placed()
            await here.peers.text(envelope.request_id, 5, "x")
            await reader.readuntil(b"data: ")
            leaving = asyncio.create_task(here.running.http.leave_port())
            await leaving
            await here.peers.text(envelope.request_id, 6, "y", finish="stop")
            await reader.readuntil(b"[DONE]")
            writer.write(HEALTH)
            rest = await reader.read()
        writer.close()
        assert b"HTTP/1.1 200 " in rest
        assert b"connection: close" in rest.lower()


async def test_what_is_asked_behind_a_stream_as_a_gateway_drains_is_served_where_its_ports_are_left(
    nats_url: str,
) -> None:
    async with edge(nats_url) as here:
        host, _, port = here.running.http.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(posted({"prompt": "hello", "stream": True}))
            first, _ = await here.peers.placed()
            await here.peers.text(first.request_id, 5, "x")
            await reader.readuntil(b"data: ")
            here.running.context.drain_gate.hears_last_calls = True
            await here.running.http.leave_port()
            drain = asyncio.create_task(here.running.drain())
            await until(lambda: here.running.registry.drain_gate.closing)
            await here.peers.text(first.request_id, 6, "y", finish="stop")
            await reader.readuntil(b"[DONE]")
            here.peers["prefill-0"].got.clear()
            writer.write(posted({"prompt": "again"}))
            second, _ = await here.peers.placed()
            assert not drain.done()
            await here.peers.text(second.request_id, 5, "z", finish="stop")
            rest = await reader.read()
            await drain
        writer.close()
        assert b"HTTP/1.1 200 " in rest
        assert b"connection: close" in rest.lower()


def posted(asked: dict[str, object]) -> bytes:
    """A request for a completion, as its bytes."""
    body = json.dumps(asked).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def refuses(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) == errno.ECONNREFUSED


SLOW_ROWS = 600
ROW_CHARS = 16_000
"""All rows together are more than sockets and the edge's buffer keep."""


async def test_a_client_that_reads_late_gets_every_row_in_order_and_those_that_waited_in_one_event(
    nats_url: str,
) -> None:
    texts = [f"<{number}>".ljust(ROW_CHARS, "x") for number in range(SLOW_ROWS)]
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(TEXT, json={"prompt": "hello", "stream": True}))
        envelope, prefill = await here.peers.placed()
        await here.peers.text(envelope.request_id, prefill.prompt_len, texts[0], ids=(1,))
        async with await asked as response:
            for number, text in enumerate(texts[1:], start=1):
                await here.peers.text(envelope.request_id, prefill.prompt_len + number, text, ids=(1,))
            session = here.running.registry.live_sessions(1)[0]
            await until(lambda: len(session.state.log.ids) == SLOW_ROWS)
            end = prefill.prompt_len + SLOW_ROWS
            await here.peers.text(envelope.request_id, end, "", ids=(), finish="length")
            *chunks, _ = (await response.content.read()).removesuffix(b"\n\n").split(b"\n\n")
    heard = [json.loads(chunk.removeprefix(b"data: "))["choices"][0]["text"] for chunk in chunks]
    assert "".join(heard) == "".join(texts)
    assert len([text for text in heard if text]) < SLOW_ROWS
