"""`/v1/responses` over the sessions that chats have: whole, as named and numbered events, and failed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Message, Prefill, Tokenize, ToolCall
from shared.sampling.parameters import Grammar
from tests.integration.gateway_peers import Answer, default_answer
from tests.integration.http_edge import Edge, edge, streamed
from tests.integration.test_gateway_http_logprobs import LOGPROBS, spelled
from tests.integration.test_gateway_tools import CALL, say, teach
from tests.support.http import events

RESPONSES = "/v1/responses"
HELLO = {"input": "hello"}


def types(happened: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in happened]


async def test_a_response_is_one_message_with_exact_usage(nats_url: str) -> None:
    body = {**HELLO, "metadata": {"a": "b"}, "max_output_tokens": 9, "temperature": 0.5, "store": True}
    async with edge(nats_url) as here:
        reply = await here.answered(RESPONSES, body)
    found, request_id = reply.body, reply.headers["x-request-id"]
    assert (reply.status, found["object"], found["status"]) == (200, "response", "completed")
    assert (found["id"], found["model"]) == (f"resp_{request_id}", "test-model")
    assert found["output"] == [
        {
            "id": f"msg_{request_id}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}],
        }
    ]
    assert found["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert (found["metadata"], found["store"], found["error"]) == ({"a": "b"}, False, None)
    assert (found["max_output_tokens"], found["temperature"], found["top_p"]) == (9, 0.5, 1.0)


async def test_a_response_that_reaches_its_length_is_incomplete(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = here.begin(RESPONSES, HELLO)
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "ab", finish="length")
        found = (await asked).body
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["output"][0]["status"] == "incomplete"


async def test_a_stream_is_the_sequence_of_events_that_clients_know(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(RESPONSES, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a")
        async with await asked as response:
            coming = events(response)
            happened = [await anext(coming) for _ in range(5)]
            await here.peers.text(envelope.request_id, 6, "b", finish="stop")
            happened += [event async for event in coming]
    assert types(happened) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in happened] == list(range(10))
    assert [event["delta"] for event in happened[4:6]] == ["a", "b"]
    assert (happened[0]["response"]["status"], happened[0]["response"]["output"]) == ("in_progress", [])
    assert {event["item_id"] for event in happened[3:8]} == {f"msg_{envelope.request_id}"}
    assert happened[6]["text"] == happened[7]["part"]["text"] == "ab"
    last = happened[-1]["response"]
    assert happened[8]["item"] == last["output"][0]
    assert (last["status"], last["usage"]["output_tokens"]) == ("completed", 2)


async def test_each_event_is_named_by_its_type_and_nothing_follows_the_last(nats_url: str) -> None:
    async with edge(nats_url) as here:
        asked = asyncio.create_task(here.client.post(RESPONSES, json={**HELLO, "stream": True}))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a", finish="length")
        async with await asked as response:
            frames = (await response.read()).decode().split("\n\n")
    assert frames[-1] == ""
    named = [frame.splitlines() for frame in frames[:-1]]
    names = [name.removeprefix("event: ") for name, _ in named]
    assert names == [json.loads(data.removeprefix("data: "))["type"] for _, data in named]
    assert (names[0], names[-1]) == ("response.created", "response.incomplete")


async def test_logprobs_are_those_of_the_text_in_each_delta_and_in_the_end(nats_url: str) -> None:
    body = {**HELLO, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = spelled
        asked = asyncio.create_task(here.client.post(RESPONSES, json=body))
        envelope, _ = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "é", ids=(300, 301), logprobs=LOGPROBS, finish="stop")
        async with await asked as response:
            happened = [event async for event in events(response)]
    delta, done = happened[4], happened[5]
    assert [bytes(token["bytes"]) for token in delta["logprobs"]] == [b"\xc3", b"\xa9"]
    assert delta["logprobs"][0]["top_logprobs"][1] == {"token": "b", "bytes": [98], "logprob": -1.5}
    assert delta["logprobs"] == done["logprobs"]
    assert happened[-1]["response"]["output"][0]["content"][0]["logprobs"] == done["logprobs"]


async def test_a_schema_reaches_the_worker_and_a_timeline_comes_with_the_whole(nats_url: str) -> None:
    text_format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    body = {**HELLO, "text": {"format": text_format}, "penstock": {"timeline": True}}
    async with edge(nats_url) as here:
        *_, last = await streamed(here, RESPONSES, body)
        ((_, prefill),) = here.peers["prefill-0"].of(Prefill)
    assert isinstance(prefill, Prefill)
    assert prefill.sampling.grammar == Grammar("json_schema", '{"type": "object"}')
    assert last["response"]["text"] == {"format": text_format}
    (request,) = last["response"]["penstock"]["requests"]
    timeline = request["timeline"]
    assert sum(phase["duration_us"] for phase in timeline["phases"]) == timeline["total_us"] > 0


async def test_what_fails_before_the_first_token_is_a_status_with_the_field_as_responses_call_it(
    nats_url: str,
) -> None:
    def answers(message: Message) -> Answer:
        if isinstance(message, Prefill):
            return InvalidRequest("sampling.json_schema is not usable: mend it")
        return default_answer(message)

    async with edge(nats_url) as here:
        here.peers["prefill-0"].answers = answers
        body = {**HELLO, "stream": True, "text": {"format": {"type": "json_schema", "schema": {}}}}
        reply = await here.post(RESPONSES, body)
        await here.idle()
    assert (reply.status, reply.error["param"]) == (400, "text.format.schema")


async def failed_midway(here: Edge) -> list[Any]:
    """The events of a response that has said "a" when its request is cancelled by the response's id."""
    asked = asyncio.create_task(here.client.post(RESPONSES, json={**HELLO, "stream": True}))
    envelope, _ = await here.peers.placed()
    await here.peers.text(envelope.request_id, 5, "a")
    async with await asked as response:
        coming = events(response)
        happened = [await anext(coming) for _ in range(5)]
        assert (await here.post(f"/v1/requests/resp_{envelope.request_id}/cancel", {})).status == 200
        return happened + [event async for event in coming]


async def test_what_fails_after_the_first_token_ends_as_a_failed_response_with_its_text(
    nats_url: str,
) -> None:
    async with edge(nats_url) as here:
        *happened, last = await failed_midway(here)
        await here.idle()
    assert types([last]) == ["failed"]
    assert last["sequence_number"] == len(happened)
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "cancelled")
    (item,) = last["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")


# ---- calls ------------------------------------------------------------------------------------------

CALLING = {
    "input": "hello",
    "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
}


async def test_a_call_is_an_item_of_its_own_without_a_message(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        asked = here.begin(RESPONSES, CALLING)
        request_id = await say(here, CALL)
        found = (await asked).body
    (item,) = found["output"]
    assert item == {
        "id": f"fc_{request_id}",
        "type": "function_call",
        "status": "completed",
        "call_id": item["call_id"],
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    }
    assert item["call_id"]
    assert (found["status"], found["tools"], found["tool_choice"]) == ("completed", CALLING["tools"], "auto")


async def test_a_text_and_the_call_after_it_are_streamed_as_two_items(nats_url: str) -> None:
    parts = ('So.\n<tool_call>\n{"name": "weather", "arguments": ', '{"city"', ': "Oslo"}}\n</tool_call>')
    async with edge(nats_url) as here:
        teach(here)
        asked = asyncio.create_task(here.client.post(RESPONSES, json={**CALLING, "stream": True}))
        request_id = await say(here, *parts)
        async with await asked as response:
            happened = [event async for event in events(response)]
    assert list(dict.fromkeys(types(happened))) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in happened] == list(range(len(happened)))
    of = {name: [each for each in happened if each["type"] == f"response.{name}"] for name in types(happened)}
    text, call = of["output_item.done"]
    assert (text["output_index"], call["output_index"]) == (0, 1)
    assert [each["item"] for each in (text, call)] == happened[-1]["response"]["output"]
    assert of["output_item.added"][1]["item"] == {
        **call["item"],
        "status": "in_progress",
        "arguments": "",
    }
    assert "".join(each["delta"] for each in of["function_call_arguments.delta"]) == '{"city": "Oslo"}'
    (done,) = of["function_call_arguments.done"]
    assert (done["arguments"], done["item_id"]) == ('{"city": "Oslo"}', f"fc_{request_id}_1")
    assert text["item"]["content"][0]["text"] == "So."


async def test_a_call_that_is_cut_short_is_incomplete(nats_url: str) -> None:
    async with edge(nats_url) as here:
        teach(here)
        asked = here.begin(RESPONSES, CALLING)
        await say(here, '<tool_call>\n{"name": "weather", "arguments": {"ci', finish="length")
        found = (await asked).body
    assert (found["status"], found["output"][0]["status"]) == ("incomplete", "incomplete")
    assert found["output"][0]["arguments"] == '{"ci'


async def test_results_of_calls_reach_the_tokenizer_as_turns(nats_url: str) -> None:
    called = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
    async with edge(nats_url) as here:
        teach(here)
        said = {"role": "user", "content": "hello"}
        reply = await here.answered(RESPONSES, {**CALLING, "input": [said, called, result]})
        ((_, asked),) = here.peers["tokenizer-0"].of(Tokenize)
    assert reply.status == 200
    assert isinstance(asked, Tokenize)
    assert asked.chat[1:] == (
        ChatTurn("assistant", "", "", (ToolCall("c1", "weather", "{}"),), ""),
        ChatTurn("tool", "rain", "", (), "c1"),
    )
