"""Log-probabilities over HTTP: tokens are shown by the bytes that they stand for."""

from __future__ import annotations

import asyncio

from shared.errors import Unavailable
from shared.messages import (
    Message,
    SpellTokens,
    TokenSpellings,
    unpack_ids,
)
from shared.sampling import TokenLogprob
from tests.integration.gateway_peers import Answer, default_answer
from tests.integration.http_edge import CHAT, HELLO, TEXT, edge
from tests.support.http import events


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
