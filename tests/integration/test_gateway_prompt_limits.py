"""Prompts at the edge of what a real NATS server carries, and beyond the context of the model."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.blocks.block_hash import BlockHasher
from shared.errors import ContextExceeded, PenstockError
from shared.messages import Message, Reserve, Tokenize, Tokenized, pack_hashes, pack_ids
from shared.text.tokenizer import TextTokenizer
from tests.integration.gateway_peers import Answer, default_answer
from tests.integration.http_edge import CHAT, HELLO, TEXT, Edge, edge
from tests.support.client import generate
from tests.support.data import REPOSITORY
from tests.support.wait import until

RESPONSES = "/v1/responses"
BIG_ID = 2**31 - 1


def ids(count: int) -> pb.GenerateRequest:
    """With the options that take the most room in a message."""
    sampling = pb.Sampling(
        allowed_token_ids=range(BIG_ID, BIG_ID - (1 << 14), -1),
        bad_word_ids=[pb.TokenIds(ids=[BIG_ID - number] * 64) for number in range(256)],
        json_schema="{" + " " * 65_000 + "}",
    )
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[BIG_ID] * count), sampling=sampling)


async def test_the_longest_prompt_of_ids_reaches_the_workers_and_one_more_id_is_refused(
    nats_url: str,
) -> None:
    async with edge(nats_url) as here:
        most = here.running.registry.prompt_limits.max_ids
        refused = await generate(here.running.stub, ids(most + 1))
        calling = asyncio.create_task(generate(here.running.stub, ids(most)))
        envelope, prefill = await here.peers.placed()
        await here.peers.text(envelope.request_id, most, "a", finish="stop")
        answer = await calling
    assert answer.outcome == "finished", answer.details
    assert prefill.prompt_len == most > 150_000
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.details == f"gateway: token_ids.ids has {most + 1} ids: send at most {most}"


@pytest.mark.parametrize("kind", ["text", "chat"])
async def test_the_longest_text_reaches_a_tokenizer_and_one_more_byte_is_refused(
    nats_url: str, kind: str
) -> None:
    def answers(message: Message) -> Answer:
        return Tokenized(pack_ids([7]), b"") if isinstance(message, Tokenize) else default_answer(message)

    def body(size: int) -> dict[str, Any]:
        return (
            {"prompt": "x" * size}
            if kind == "text"
            else {"messages": [_user("x" * (size - 9))] + [_user("y")] * 9}
        )

    path = TEXT if kind == "text" else CHAT
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = answers
        most = here.running.registry.prompt_limits.max_text_bytes
        refused = await here.post(path, body(most + 1))
        reply = await here.answered(path, body(most))
    assert reply.status == 200
    assert (refused.status, refused.error["param"]) == (400, "prompt" if kind == "text" else "messages")
    assert f"send at most {most}" in refused.error["message"]


def reach_of(here: Edge) -> int:
    (view,) = here.running.fleet.instances("tokenizer")
    return view.heartbeat.tokenizer.most_token_bytes


def context_of(here: Edge, role: str) -> int:
    (view,) = here.running.fleet.instances(role)
    return view.heartbeat.context_tokens


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


async def test_a_text_of_more_tokens_than_the_bus_carries_is_a_413(nats_url: str) -> None:
    async with edge(nats_url) as here:
        most = here.running.registry.prompt_limits.max_ids

        def answers(message: Message) -> Answer:
            if isinstance(message, Tokenize):
                return Tokenized(pack_ids([7] * (most + 1)), pack_hashes([b"h" * 16] * (most // 16)))
            return default_answer(message)

        here.peers["tokenizer-0"].answers = answers
        reply = await here.post(CHAT, HELLO)
        await here.idle()
    assert (reply.status, reply.error["code"]) == (413, "too_large")
    assert f"{most + 1} tokens" in reply.error["message"]


@pytest.mark.thorough(but="/v1/chat/completions-prompt0-messages")
@pytest.mark.parametrize(
    ("path", "prompt", "param"),
    [
        (CHAT, HELLO, "messages"),
        (TEXT, {"prompt": "hello"}, "prompt"),
        (TEXT, {"prompt": [1, 2, 3, 4, 5]}, "prompt"),
        (RESPONSES, {"input": "hello"}, "input"),
    ],
)
async def test_a_prompt_that_fills_the_context_is_what_openai_calls_it(
    nats_url: str, path: str, prompt: dict[str, Any], param: str
) -> None:
    async with edge(nats_url) as here:
        for role, context in (("prefill", 9), ("decode", 5)):
            here.peers[f"{role}-0"].say(context_tokens=context)
        await until(lambda: (context_of(here, "prefill"), context_of(here, "decode")) == (9, 5))
        reply = await here.post(path, prompt)
        here.peers["decode-0"].say(context_tokens=6)
        await until(lambda: context_of(here, "decode") == 6)
        assert (await here.answered(path, prompt)).status == 200
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert (reply.error["code"], reply.error["param"]) == ("context_length_exceeded", param)
    assert "5 tokens, and the maximum context length of the model is 5 tokens" in reply.error["message"]


ENGLISH = "Water flows through the gate of iron, and stops at the wall. "
REACH = 16


@pytest.mark.thorough(but="too large to be read")
@pytest.mark.parametrize("over", [False, True], ids=["read by a tokenizer", "too large to be read"])
async def test_a_megabyte_of_english_is_longer_than_the_context_and_says_by_how_much(
    nats_url: str, over: bool
) -> None:
    tokenizer = TextTokenizer.load(REPOSITORY / "shared" / "demo" / "models" / "target")
    prompts = PromptTokenizer(tokenizer, BlockHasher(), 1 << 20)

    def answers(message: Message) -> Answer:
        if not isinstance(message, Tokenize):
            return default_answer(message)
        try:
            return prompts.tokenize_prompt(message)
        except PenstockError as error:
            return error

    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = answers
        here.peers["tokenizer-0"].say(most_token_bytes=tokenizer.most_token_bytes)
        for role in ("prefill", "decode"):
            here.peers[f"{role}-0"].say(context_tokens=8192)
        await until(lambda: context_of(here, "decode") == context_of(here, "prefill") == 8192)
        await until(lambda: reach_of(here) == tokenizer.most_token_bytes)
        size = 1_020_000 if over else 1_000_000
        text = (ENGLISH * (size // len(ENGLISH) + 1))[:size]
        replies = [
            await here.post(TEXT, {"prompt": text}),
            await here.post(CHAT, {"messages": [_user(text)]}),
            await here.post(RESPONSES, {"input": text}),
        ]
        over_grpc = await generate(here.running.stub, pb.GenerateRequest(text=text))
        await here.idle()
    for reply, param in zip(replies, ("prompt", "messages", "input"), strict=True):
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert reply.error["param"] == param
        assert "the maximum context length of the model is 8192 tokens" in reply.error["message"]
    assert over_grpc.end is not None
    assert over_grpc.end.error.code == "context_length_exceeded"
    told = re.search(r"the prompt has (at least )?(\d+) tokens", over_grpc.details)
    assert told is not None
    tokens = len(tokenizer.encode_text(text))
    if over:
        assert told[1]
        assert 8192 <= int(told[2]) <= tokens
    else:
        assert (told[1], int(told[2])) == (None, tokens)


@pytest.mark.thorough(but="16-0")
@pytest.mark.parametrize(("reach", "context"), [(0, 8192), (REACH, 0), (REACH, 1 << 20)])
async def test_a_text_whose_size_proves_nothing_is_told_how_large_it_may_be(
    nats_url: str, reach: int, context: int
) -> None:
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].say(most_token_bytes=reach)
        for role in ("prefill", "decode"):
            here.peers[f"{role}-0"].say(context_tokens=context)
        await until(lambda: context_of(here, "decode") == context_of(here, "prefill") == context)
        await until(lambda: reach_of(here) == reach)
        most = here.running.registry.prompt_limits.max_text_bytes
        replies = [await here.post(TEXT, {"prompt": "x" * (most + 1)})]
        here.peers["tokenizer-0"].say(most_token_bytes=REACH)
        for role in ("prefill", "decode"):
            here.peers[f"{role}-0"].say(context_tokens=8192)
        await until(lambda: context_of(here, "decode") == context_of(here, "prefill") == 8192)
        await until(lambda: reach_of(here) == REACH)
        # A template may leave out white space and earlier turns.
        replies.append(await here.post(CHAT, {"messages": [_user("x" * (most + 1)), _user("y")]}))
        replies.append(await here.post(CHAT, {"messages": [_user(" " * (most + 1))]}))
    for reply in replies:
        assert (reply.status, reply.error["code"]) == (400, "invalid_value")
        assert f"send at most {most}" in reply.error["message"]


async def test_a_tokenizer_hears_how_long_a_prompt_may_be(nats_url: str) -> None:
    """Its answer to a longer one might not fit into a message."""
    async with edge(nats_url) as here:
        for role, context in (("prefill", 9), ("decode", 7)):
            here.peers[f"{role}-0"].say(context_tokens=context)
        await until(lambda: (context_of(here, "prefill"), context_of(here, "decode")) == (9, 7))
        assert (await here.answered(CHAT, HELLO)).status == 200
        ((_, asked),) = here.peers["tokenizer-0"].of(Tokenize)
    assert isinstance(asked, Tokenize)
    assert asked.context_tokens == 7


async def test_what_a_worker_says_of_its_context_is_told_as_such_too(nats_url: str) -> None:
    def answers(message: Message) -> Answer:
        return ContextExceeded.of(5, 4) if isinstance(message, Reserve) else default_answer(message)

    async with edge(nats_url) as here:
        here.peers["decode-0"].answers = answers
        reply = await here.post(CHAT, HELLO)
        over_grpc = await generate(here.running.stub, pb.GenerateRequest(text="hello"))
        await here.idle()
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert over_grpc.status is grpc.StatusCode.INVALID_ARGUMENT
    assert over_grpc.end is not None
    assert over_grpc.end.error.code == "context_length_exceeded"
