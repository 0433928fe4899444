"""An answer that cites its passages by number, as OpenAI's own client reads it from `/v1/responses`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import openai

from tests.integration.gateway_peers import MODEL, Fleet, Running, default_answer
from tests.integration.test_gateway_prompt_passages import LAKE, RIVER, serving

PARTS = ("Downhill [", "3], not [0] or [4", "]; see [1].")
TEXT = "".join(PARTS)
RETRIEVING: dict[str, Any] = {
    "model": MODEL,
    "input": "what flows?",
    "temperature": 0.0,
    "max_output_tokens": 16,
    "extra_body": {"penstock": {"retrieval": True}},
}
CITED = [
    {"type": "file_citation", "index": TEXT.index("[3]"), "file_id": "rivers.md", "filename": "rivers.md"},
    {"type": "file_citation", "index": TEXT.index("[1]"), "file_id": "lakes.md", "filename": "lakes.md"},
]


def client_of(running: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://{running.http.address}/v1", api_key="none", max_retries=0, timeout=30.0
    )


def plain(read: openai.BaseModel) -> dict[str, Any]:
    """What the client has read, by its types."""
    fields: dict[str, Any] = read.to_dict(mode="json")
    return fields


async def say_parts(peers: Fleet) -> None:
    """The only request's answer."""
    envelope, prefill = await peers.placed()
    position = prefill.prompt_len
    for part in PARTS:
        finish = "stop" if part is PARTS[-1] else ""
        await peers.text(envelope.request_id, position, part, ids=(7,), finish=finish)
        position += 1


async def test_numbers_of_passages_in_a_response_are_file_citations(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running), client_of(running) as client:
        asked = asyncio.create_task(client.responses.create(**RETRIEVING))
        await say_parts(peers)
        response = plain(await asked)
    assert response["output"][0]["content"] == [
        {"type": "output_text", "text": TEXT, "annotations": CITED, "logprobs": []}
    ]
    passages = response["penstock"]["requests"][0]["passages"]
    assert [passage["prompt_place"] for passage in passages] == [3, 1, 2]
    assert [passage["source"] for passage in passages[:2]] == [RIVER.source, LAKE.source]


async def test_a_stream_tells_each_citation_after_the_text_that_completes_it(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running), client_of(running) as client:
        asked = asyncio.create_task(client.responses.create(**RETRIEVING, stream=True))
        await say_parts(peers)
        happened = [plain(event) async for event in await asked]
    told, text = [], ""
    for event in happened:
        if event["type"] == "response.output_text.delta":
            text += event["delta"]
        if event["type"] == "response.output_text.annotation.added":
            told.append((event["annotation_index"], event["annotation"]))
            assert re.match(r"\[\d\]", text[event["annotation"]["index"] :])
    assert told == list(enumerate(CITED))
    assert happened[-1]["response"]["output"][0]["content"][0]["annotations"] == CITED
    assert [event["sequence_number"] for event in happened] == list(range(len(happened)))


async def test_without_retrieval_brackets_are_text(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running), client_of(running) as client:
        peers["tokenizer-0"].answers = default_answer  # the real one knows no chat
        asked = asyncio.create_task(client.responses.create(model=MODEL, input="what flows?"))
        await say_parts(peers)
        response = plain(await asked)
    assert response["output"][0]["content"][0]["annotations"] == []
