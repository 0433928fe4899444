"""A gateway tells what a model thinks apart from what it answers, over both edges."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from shared.deadline import SYSTEM_CLOCK
from shared.messages import ChatTurn, Message, Open, PromptThinking, Reserve, Tokenize
from shared.sampling.parameters import Grammar
from shared.sampling.thinking import ThinkingRule
from tests.integration.gateway_peers import Answer, default_answer, tokenized
from tests.integration.http_edge import CHAT, TEXT, Edge, edge
from tests.integration.test_gateway_http_responses import RESPONSES, types
from tests.integration.test_gateway_tools import CALL, WEATHER, only, say
from tests.support.http import events
from tests.support.metric import total

USEFUL = "penstock_time_to_useful_answer_seconds_count"
CLOSING, SHOWN = 0x1F, 9
MARK = "</think>"
THINKING = PromptThinking("think", True, ((MARK, SHOWN),), closing_id=CLOSING, close_ids=(CLOSING,))
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
SAID = "So <b.\n</think>\n\nIt rains."


def thinking(message: Message) -> Answer:
    """Answer as a tokenizer whose chat template opens the thinking of its model."""
    if not isinstance(message, Tokenize):
        return default_answer(message)
    tool_format = "hermes" if message.tools else ""
    return replace(tokenized(message), tool_format=tool_format, thinking=THINKING)


def teach(here: Edge) -> None:
    here.peers["tokenizer-0"].answers = thinking


async def test_a_chat_has_its_thinking_beside_the_content_and_in_its_usage(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, ASKED)
        envelope, prefill = await here.peers.placed()
        position = prefill.prompt_len
        await here.peers.text(envelope.request_id, position, f"So.\n{MARK}", ids=(1, 2, CLOSING))
        await here.peers.text(envelope.request_id, position + 3, "\n\nIt rains.", finish="stop")
        body = (await reply).body
        assert only(here, "detokenizer-0", Open).shown_ids == (SHOWN,)
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "It rains.",
        "refusal": None,
        "reasoning_content": "So.",
    }
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_a_chat_streams_its_thinking_in_deltas_of_their_own(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        asked = asyncio.create_task(
            here.client.post(CHAT, json={**ASKED, "tools": [WEATHER], "stream": True})
        )
        said = asyncio.create_task(say(here, *f"{SAID}{CALL}"))
        async with await asked as response:
            got = [event async for event in events(response) if event != "[DONE]"]
        await said
    deltas = [event["choices"][0]["delta"] for event in got]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "So <b."
    assert "".join(delta.get("content", "") for delta in deltas) == "It rains."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Oslo"}'


async def test_grpc_hears_the_same_and_so_does_who_shares_the_computation(nats_url: str) -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello")])
    asked = pb.GenerateRequest(chat=chat, sampling=pb.Sampling(temperature=0), resumable=False)
    async with edge(nats_url) as here:
        teach(here)
        first = here.running.stub.Generate(asked)
        await here.peers.placed()
        second = here.running.stub.Generate(asked)
        got = [[], []] = [list[pb.GenerateEvent](), list[pb.GenerateEvent]()]
        got[1].append(await anext(aiter(second)))
        assert got[1][0].prompt.coalesced_with
        await say(here, SAID[:9], SAID[9:])
        for call, heard in zip((first, second), got, strict=True):
            heard += [event async for event in call]
    for heard in got:
        assert "".join(event.text.reasoning for event in heard) == "So <b."
        assert "".join(event.text.text for event in heard) == "It rains."
        assert heard[-1].end.usage.reasoning_tokens == len(SAID)  # its closing is not among these ids


async def test_a_stream_with_thinking_is_resumable(nats_url: str) -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello")])
    async with edge(nats_url) as here:
        teach(here)
        call = here.running.stub.Generate(pb.GenerateRequest(chat=chat, resumable=True))
        said = asyncio.create_task(say(here, SAID))
        got = [event async for event in call]
        await said
    assert "~think.1.-1." in got[0].prompt.resume_token
    assert got[-1].end.outcome == pb.OUTCOME_FINISHED


async def test_a_text_is_told_as_it_is_written(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(TEXT, {"prompt": "hello"})
        await say(here, SAID)
        body = (await reply).body
    assert body["choices"][0]["text"] == SAID


async def test_a_response_has_an_item_of_reasoning_and_takes_it_back(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        asked = asyncio.create_task(here.client.post(RESPONSES, json={"input": "hello", "stream": True}))
        await say(here, SAID)
        async with await asked as response:
            got = [event async for event in events(response)]
        output = got[-1]["response"]["output"]
        for peer in here.peers.peers.values():
            peer.got.clear()
        again = {"input": [{"role": "user", "content": "hello"}, *output, {"role": "user", "content": "go"}]}
        reply = here.begin(RESPONSES, again)
        await say(here, SAID)
        assert (await reply).status == 200
        sent = only(here, "tokenizer-0", Tokenize).chat
    assert types(got)[2:7] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
    ]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "So <b."}]
    assert output[1]["content"][0]["text"] == "It rains."
    assert got[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": len(SAID)}
    assert sent[1] == ChatTurn("assistant", "It rains.", reasoning="So <b.")


async def test_limits_of_a_thinking_reach_the_fleet(nats_url: str) -> None:
    body = {**ASKED, "max_tokens": 50, "reasoning_effort": "low", "response_format": {"type": "json_object"}}
    async with edge(nats_url) as here:
        teach(here)
        reply = here.begin(CHAT, {**body, "penstock": {"thinking": {"deadline_ms": 60_000}}})
        await say(here, SAID)
        assert (await reply).status == 200
        assert only(here, "tokenizer-0", Tokenize).reasoning_effort == "low"
        reserve = only(here, "decode-0", Reserve)
    assert reserve.sampling.thinking == ThinkingRule(CLOSING, (CLOSING,), begun=True, max_tokens=10)
    assert 0 < reserve.thinking_us - SYSTEM_CLOCK.steady_us() <= 60_000_000
    assert reserve.sampling.grammar == Grammar("json_object")


async def test_a_gateway_says_when_an_answer_became_useful(nats_url: str) -> None:
    before = total(USEFUL, model="test-model")
    async with edge(nats_url, useful_marker="thinking") as here:
        teach(here)
        reply = here.begin(CHAT, {**ASKED, "penstock": {"timeline": True}})
        await say(here, SAID)
        timeline = (await reply).body["penstock"]["requests"][0]["timeline"]
        await here.idle()
    assert 0 < timeline["ttft_us"] <= timeline["useful_us"] <= timeline["total_us"]
    assert total(USEFUL, model="test-model") == before + 1
