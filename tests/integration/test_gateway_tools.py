"""Calls of tools through a gateway, over both edges: what the fleet is asked, and what the client hears."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Message, Open, Prefill, Reserve, Tokenize, Tool, ToolCall
from tests.integration.gateway_peers import Answer, default_answer, tokenized
from tests.integration.http_edge import CHAT, HELLO, Edge, edge
from tests.support.http import events

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
ASKED: dict[str, Any] = {**HELLO, "tools": [WEATHER]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MARKER_ID = 9


def teaching(message: Message) -> Answer:
    """As a tokenizer whose model has one of the markers as a special token."""
    if not isinstance(message, Tokenize) or not message.tools:
        return default_answer(message)
    plain = tokenized(message)
    markers = (("</tool_call>", MARKER_ID),)
    return type(plain)(plain.token_ids, plain.block_hashes, "hermes", markers)


def teach(here: Edge) -> None:
    here.peers["tokenizer-0"].answers = teaching


async def say(here: Edge, *parts: str, finish: str = "stop", epoch: int = 1) -> str:
    """The parts as rows of text, one after another; the id of the request."""
    envelope, prefill = await here.peers.placed(epoch)
    position = prefill.prompt_len
    for number, part in enumerate(parts, start=1):
        last = finish if number == len(parts) else ""
        await here.peers.text(envelope.request_id, position, part, epoch=epoch, finish=last)
        position += len(part)
    return envelope.request_id


def only(here: Edge, instance: str, kind: type[Any]) -> Any:
    ((_, message),) = here.peers[instance].of(kind)
    return message


async def test_a_call_is_told_in_one_body_with_exact_usage(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        await say(here, CALL)
        body = (await reply).body
    (choice,) = body["choices"]
    call_id = choice["message"]["tool_calls"][0]["id"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert len(call_id) == 9
    assert body["usage"]["completion_tokens"] == len(CALL)


async def test_the_fleet_is_told_of_the_tools_and_holds_the_model_to_them(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        await say(here, CALL)
        await reply
        assert only(here, "tokenizer-0", Tokenize).tools == (Tool("weather", "", json.dumps(SCHEMA)),)
        assert only(here, "detokenizer-0", Open).shown_ids == (MARKER_ID,)
        grammar = only(here, "prefill-0", Prefill).sampling.grammar
        assert only(here, "decode-0", Reserve).sampling.grammar == grammar
    assert grammar.kind == "ebnf"
    assert '"properties": {"city": {"type": "string"}}' in grammar.text
    assert f'"}}\\n" <[{MARKER_ID}]>' in grammar.text


async def test_a_call_is_streamed_as_it_is_written(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        asked = asyncio.create_task(here.client.post(CHAT, json={**ASKED, "stream": True}))
        envelope, prefill = await here.peers.placed()
        position = prefill.prompt_len
        parts = ['So.\n<tool_call>\n{"name": "weather", "arguments": ', '{"city"', ': "Oslo"}}\n</tool_call>']
        deltas: list[dict[str, Any]] = []
        await here.peers.text(envelope.request_id, position, parts[0])
        async with await asked as response:
            coming = events(response)
            deltas.append((await anext(coming))["choices"][0]["delta"])
            for part, following in zip(parts, [*parts[1:], ""], strict=True):
                deltas.append((await anext(coming))["choices"][0]["delta"])
                position += len(part)
                finish = "" if following else "stop"
                await here.peers.text(envelope.request_id, position, following, finish=finish)
            rest = [event async for event in coming]
    call_id = deltas[1]["tool_calls"][0]["id"]
    begun = {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": ""}}
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "So.", "tool_calls": [{"index": 0, **begun}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "Oslo"}'}}]},
    ]
    assert rest[0]["choices"][0]["finish_reason"] == "tool_calls"
    assert rest[1:] == ["[DONE]"]


async def test_grpc_hears_the_same_calls(nats_url: str) -> None:
    chat = pb.ChatPrompt(
        messages=[pb.ChatMessage(role="user", content="hello")], tools=[pb.Tool(name="weather")]
    )
    async with edge(nats_url) as here:
        teach(here)
        call = here.running.stub.Generate(pb.GenerateRequest(chat=chat))
        said = asyncio.create_task(say(here, CALL[:5], CALL[5:]))
        got = [event async for event in call]
        await said
    deltas = [delta for event in got for delta in event.text.tool_calls]
    assert [delta.index for delta in deltas] == [0] * len(deltas)
    assert (deltas[0].name, len(deltas[0].id)) == ("weather", 9)
    assert "".join(delta.arguments for delta in deltas) == '{"city": "Oslo"}'
    assert "".join(event.text.text for event in got) == ""
    assert sum(len(event.text.token_ids) for event in got) == len(CALL)
    assert got[-1].end.finish_reason == pb.FINISH_REASON_TOOL_CALLS


async def test_an_answer_that_calls_nothing_is_text(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        await say(here, "It rains <to")
        (choice,) = (await reply).body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It rains <to", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_a_call_that_is_cut_short_ends_by_its_length(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        await say(here, CALL[:-20], finish="length")
        (choice,) = (await reply).body["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Oslo"}'.startswith(call["function"]["arguments"])
    assert choice["finish_reason"] == "length"


async def test_a_request_that_moves_to_other_workers_in_a_call_goes_on_in_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        envelope, prefill = await here.peers.placed()
        await here.peers.text(envelope.request_id, prefill.prompt_len, CALL[:45])
        await here.peers.lost(envelope.request_id, 1)
        _, again = await here.peers.placed(2)
        position = prefill.prompt_len + 45
        assert again.sampling.grammar == prefill.sampling.grammar
        await here.peers.text(envelope.request_id, position, CALL[45:], epoch=2, finish="stop")
        (choice,) = (await reply).body["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert choice["finish_reason"] == "tool_calls"


async def test_where_no_tool_may_be_called_the_model_hears_of_none(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, {**ASKED, "tool_choice": "none"})
        await say(here, CALL)
        (choice,) = (await reply).body["choices"]
        assert only(here, "tokenizer-0", Tokenize).tools == ()
        assert only(here, "prefill-0", Prefill).sampling.grammar is None
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


async def test_calls_and_their_results_go_back_to_the_model(nats_url: str) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, {**ASKED, "messages": turns})
        await say(here, "It rains.")
        assert (await reply).body["choices"][0]["message"]["content"] == "It rains."
        assert only(here, "tokenizer-0", Tokenize).chat == (
            ChatTurn("user", "hello"),
            ChatTurn("assistant", "", "", (ToolCall("c1", "weather", "{}"),)),
            ChatTurn("tool", "rain", "", (), "c1"),
        )


async def test_a_schema_that_no_worker_can_hold_to_is_named(nats_url: str) -> None:
    unsupported = 'it uses keywords that are not supported: "if"; leave them out'
    fault = f"the grammar (ebnf) cannot be used: line 1, column 14: its JSON schema: {unsupported}"
    async with edge(nats_url) as here:
        teach(here)
        here.peers["prefill-0"].answers = lambda message: (
            InvalidRequest(fault, hop="prefill") if isinstance(message, Prefill) else default_answer(message)
        )
        reply = await here.post(CHAT, ASKED)
    assert reply.status == 400
    assert reply.body["error"]["param"] == "tools[0].function.parameters"
    assert f"cannot be held to ({unsupported})" in reply.body["error"]["message"]


@pytest.mark.thorough(but="/v1/chat/completions")
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_wrong_tool_is_named_before_anything_is_asked(nats_url: str, path: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post(path, {**ASKED, "tools": [WEATHER, WEATHER]})
        assert here.peers["tokenizer-0"].of(Tokenize) == []
    assert (reply.status, reply.body["error"]["param"]) == (400, "tools[1].function.name")


async def test_the_ids_of_a_chat_are_those_with_its_tools(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post("/tokenize", ASKED)
        assert [tool.name for tool in only(here, "tokenizer-0", Tokenize).tools] == ["weather"]
    assert reply.status == 200
