"""Log-probabilities over HTTP: tokens are shown by the bytes that they stand for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.bus.subjects import inbox
from shared.errors import Unavailable
from shared.messages import (
    GetTokenBytes,
    Message,
    PromptLogprobs,
    TokenBytes,
    Tokenize,
    Tokenized,
    pack_hashes,
    pack_ids,
    unpack_ids,
)
from shared.sampling.parameters import TokenLogprob
from tests.integration.gateway_peers import GATEWAY, Answer, default_answer
from tests.integration.http_edge import CHAT, HELLO, TEXT, Edge, edge, streamed
from tests.support.http import events


def spelled(message: Message) -> Answer:
    """Half of a character for 300 and 301, else the character of the id."""
    if not isinstance(message, GetTokenBytes):
        return default_answer(message)
    bytes_of = {300: b"\xc3", 301: b"\xa9"}
    return TokenBytes(
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
        return Unavailable("not now") if isinstance(message, GetTokenBytes) else default_answer(message)

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
        assert len(here.peers["tokenizer-1"].of(GetTokenBytes)) == 1


PROMPT_LOGPROBS = PromptLogprobs(1, tuple(TokenLogprob(ord(each), -1.0, ((120, -0.5),)) for each in "ello"))
ECHOED = {
    "tokens": [*"hello", "a"],
    "token_logprobs": [None, -1.0, -1.0, -1.0, -1.0, -2.0],
    "top_logprobs": [None, *[{"x": -0.5}] * 4, {"a": -2.0}],
    "text_offset": [0, 1, 2, 3, 4, 5],
}


async def echoed(here: Edge, body: dict[str, Any]) -> Any:
    """What comes of an answer "a" to the prompt "hello"."""
    here.peers["tokenizer-0"].answers = spelled
    asked = asyncio.create_task(here.client.post(TEXT, json={"echo": True, "logprobs": 1, **body}))
    envelope, prefill = await here.peers.placed()
    assert prefill.sampling.prompt_logprobs == 1
    told = here.peers.bus.envelope(envelope.request_id, 1)
    await here.peers.bus.publish(inbox("gateway", GATEWAY), PROMPT_LOGPROBS, told)
    drawn = TokenLogprob(97, -2.0, ((97, -2.0),))
    await here.peers.text(envelope.request_id, 5, "a", logprobs=(drawn,), finish="stop")
    async with await asked as response:
        if body.get("stream"):
            return [event async for event in events(response)]
        return await response.json()


@pytest.mark.thorough(but="hello")
@pytest.mark.parametrize("prompt", ["hello", [ord(letter) for letter in "hello"]])
async def test_an_echo_with_logprobs_has_those_of_the_prompt(nats_url: str, prompt: Any) -> None:
    async with edge(nats_url) as here:
        (choice,) = (await echoed(here, {"prompt": prompt}))["choices"]
    assert (choice["text"], choice["logprobs"]) == ("helloa", ECHOED)


async def test_a_stream_with_an_echo_begins_with_the_logprobs_of_the_prompt(nats_url: str) -> None:
    async with edge(nats_url) as here:
        first, second, *_ = await echoed(here, {"prompt": "hello", "stream": True})
    assert (first["choices"][0]["text"], second["choices"][0]["text"]) == ("hello", "a")
    for column, whole in ECHOED.items():
        assert [first["choices"][0]["logprobs"][column], second["choices"][0]["logprobs"][column]] == [
            whole[:5],
            whole[5:],
        ]


async def test_tokens_before_the_text_of_an_echo_begin_where_it_does(nats_url: str) -> None:
    def with_beginning(message: Message) -> Answer:
        if isinstance(message, Tokenize):
            ids = [2, *map(ord, "ello")]
            return Tokenized(pack_ids(ids), pack_hashes(()))
        return spelled(message)

    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = with_beginning
        asked = here.begin(TEXT, {"prompt": "ello", "echo": True, "logprobs": 0})
        envelope, _ = await here.peers.placed()
        told = here.peers.bus.envelope(envelope.request_id, 1)
        await here.peers.bus.publish(inbox("gateway", GATEWAY), PROMPT_LOGPROBS, told)
        drawn = TokenLogprob(97, -2.0, ())
        await here.peers.text(envelope.request_id, 5, "a", logprobs=(drawn,), finish="stop")
        (choice,) = (await asked).body["choices"]
    assert choice["text"] == "elloa"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 3, 4]


async def test_an_echo_of_ids_is_what_they_stand_for(nats_url: str) -> None:
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = spelled
        reply = await here.answered(TEXT, {"prompt": [300, 301, 104], "echo": True})
        here.peers["prefill-0"].got.clear()
        streamed_chunks = await streamed(here, TEXT, {"prompt": [300, 301, 104], "echo": True})
    assert reply.body["choices"][0]["text"] == "éhab"
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed_chunks[:-1]) == "éhab"
