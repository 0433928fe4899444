"""Bodies that no program of good will sends: each gets a 4xx that says what to do, and no page fails."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
import structlog

from services.gateway.http.fields.json_body import MAX_BODY_DEPTH
from shared.errors import InvalidRequest
from shared.messages import Detokenize, Message, Tokenize
from tests.integration.gateway_peers import Answer, default_answer
from tests.integration.http_edge import edge
from tests.support.hostile_json import LONE_SURROGATE, every_place, hostile_bodies
from tests.support.http import Reply
from tests.support.http_pages import PAGES

TRIES = 100
"""The bodies for each page with one hostile value, and as many with several."""
AT_ONCE = 16
FINDS: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": (
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": [{"role": "user", "content": "a"}], "penstock": {"priority": ["low"]}}',
        '{"messages": [{"role": "user", "content": "a"}], "penstock": {"cache": {"mode": {}}}}',
        '{"messages": [{"role": "user", "content": "a"}], "penstock": {"retrieval": {"order": []}}}',
    ),
    "/v1/completions": ('{"prompt": "a", "logit_bias": {"%s": 1}}' % ("0" * 30 + "1" * 30),),
    "/v1/responses": ('{"input": "a", "model": "chat.messages[999]"}',),
    "/v1/vector_stores/docs/search": ('{"query": "a", "filters": {"type": [], "key": "a", "value": "b"}}',),
}
"""The bodies that once made a page fail."""


def refuses(message: Message) -> Answer:
    """Answer as a fleet that takes no prompt, so that a valid body ends at once."""
    return (
        InvalidRequest("the tokenizer takes nothing")
        if isinstance(message, Tokenize | Detokenize)
        else default_answer(message)
    )


@pytest.mark.thorough(but="/v1/chat/completions | /v2/rerank | /v1/embeddings")
@pytest.mark.parametrize("page", PAGES)
async def test_a_hostile_body_is_refused_with_a_sentence_and_fails_no_page(nats_url: str, page: str) -> None:
    rng = random.Random(f"bodies of {page}")
    bodies = [
        *rng.sample(list(every_place(PAGES[page])), TRIES),
        *hostile_bodies(PAGES[page], rng, TRIES),
        *((found, found.encode()) for found in FINDS.get(page, ())),
    ]
    wrong: list[str] = []
    async with edge(nats_url, admit_wait_s=0.0) as here:
        here.peers["tokenizer-0"].answers = refuses
        turn = asyncio.Semaphore(AT_ONCE)

        async def check(change: str, body: bytes) -> None:
            async with turn:
                reply = await here.post(page, body)
            if not _is_ours(reply):
                wrong.append(f"{reply.status} {json.dumps(reply.body)[:160]} for {change}")

        with structlog.testing.capture_logs() as logs:
            await asyncio.gather(*(check(change, body) for change, body in bodies))
        await here.idle()
    failed = [line for line in logs if line["log_level"] in ("error", "critical")]
    assert (wrong, failed) == ([], [])


def _is_ours(reply: Reply) -> bool:
    """Whether it is an answer, or an error of ours that is no bug."""
    return reply.status < 500 or (reply.status in (503, 504) and reply.error["code"] != "internal_error")


async def test_a_field_with_half_of_a_surrogate_pair_is_named(nats_url: str) -> None:
    body = {**PAGES["/v1/chat/completions"], "messages": [{"role": "user", "content": f"a{LONE_SURROGATE}"}]}
    async with edge(nats_url) as here:
        reply = await here.post("/v1/chat/completions", body)
    assert (reply.status, reply.error["param"]) == (400, "messages[0].content")
    assert reply.error["message"].endswith("send Unicode text")


async def test_a_pair_of_surrogates_is_a_character(nats_url: str) -> None:
    body = b'{"prompt": "\\ud83d\\ude00"}'
    async with edge(nats_url) as here:
        reply = await here.answered("/v1/completions", body)
        _, message = here.peers["tokenizer-0"].of(Tokenize)[0]
    assert reply.status == 200
    assert isinstance(message, Tokenize)
    assert message.text == "\U0001f600"


@pytest.mark.parametrize("levels", [MAX_BODY_DEPTH - 1, MAX_BODY_DEPTH])
async def test_a_body_is_read_to_its_deepest_level(nats_url: str, levels: int) -> None:
    """The body itself is one of them."""
    deep = f'{{"prompt": "a", "user": {"[" * levels}{"]" * levels}}}'.encode()
    async with edge(nats_url) as here:
        here.peers["tokenizer-0"].answers = refuses
        reply = await here.post("/v1/completions", deep)
    assert reply.status == 400
    assert ("nested deeper" in reply.error["message"]) == (levels == MAX_BODY_DEPTH)


async def test_a_name_that_a_sentence_quotes_is_not_taken_for_a_field(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.post("/v1/responses", {"input": "a", "model": "chat.messages[0]"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "'chat.messages[0]'" in reply.error["message"]
