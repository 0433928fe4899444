"""Sentences of an answer are cited: asked for at its end, told over gRPC and HTTP, waited for a moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.degradation import DegradationLevel
from shared.errors import TooLarge
from shared.messages import (
    MAX_CITED_ANSWER_CHARS,
    AnswerCited,
    CiteAnswer,
    CitedSentence,
    KeepResponse,
    KeptResponse,
    LookUpResponse,
    Message,
    Reserve,
    ResponseFound,
    pack_ids,
)
from tests.integration.gateway_peers import Answer, Fleet, Running
from tests.integration.test_gateway_citations import RETRIEVING, client_of, plain
from tests.integration.test_gateway_prompt_passages import (
    FOUND,
    LAKE,
    RIVER,
    SOURCE,
    question,
    retriever_answer,
    serving,
)
from tests.support.client import Answer as Answered
from tests.support.client import generate
from tests.support.wait import until

PATIENCE_MS = 10_000.0
"""Longer than any machine is busy."""
TEXT = "Water flows downhill. It is blue."
CITED = (CitedSentence(0, 21, 3, 0, 21, 0.75), CitedSentence(22, 33, support=0.25))
TOLD = [
    pb.Citation(start=0, end=21, prompt_place=3, passage_start=0, passage_end=21, support=0.75),
    pb.Citation(start=22, end=33, support=0.25),
]


def citing(answer: Answer) -> Callable[[Message], Answer]:
    return lambda message: answer if isinstance(message, CiteAnswer) else retriever_answer(message)


async def say(peers: Fleet, *texts: str) -> None:
    envelope, prefill = await peers.placed()
    for at, text in enumerate(texts):
        finish = "stop" if at == len(texts) - 1 else ""
        await peers.text(envelope.request_id, prefill.prompt_len + at, text, ids=(7,), finish=finish)


async def answered(peers: Fleet, running: Running, message: pb.GenerateRequest, *texts: str) -> Answered:
    call = asyncio.create_task(generate(running.stub, message))
    await say(peers, *(texts or ("Water flows ", "downhill. It is blue.")))
    return await call


def citations(answer: Answered) -> list[pb.Citation]:
    assert answer.outcome == "finished"
    assert answer.end is not None
    return list(answer.end.citations)


def asked(peers: Fleet) -> list[CiteAnswer]:
    return [message for _, message in peers["retriever-0"].of(CiteAnswer) if isinstance(message, CiteAnswer)]


async def test_the_end_tells_what_supports_each_sentence(nats_url: str) -> None:
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        answer = await answered(peers, running, question())
        (message,) = asked(peers)
    assert answer.text == TEXT
    assert citations(answer) == TOLD
    assert message == CiteAnswer("what flows?", TEXT, (LAKE.text, SOURCE.text, RIVER.text))


@pytest.mark.thorough(but="wrong0 | wrong4")
@pytest.mark.parametrize(
    "wrong",
    [
        CitedSentence(0, len(TEXT) + 1),
        CitedSentence(3, 3),
        CitedSentence(0, 21, 4, 0, 1),
        CitedSentence(0, 21, -1, 0, 1),
        CitedSentence(0, 21, 3, 0, len(RIVER.text) + 1),
        CitedSentence(0, 21, 0, 0, 5),
        CitedSentence(0, 21, 3, 0, 21, float("nan")),
    ],
)
async def test_places_that_cannot_be_are_not_told(nats_url: str, wrong: CitedSentence) -> None:
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited((CITED[0], wrong)))
        assert citations(await answered(peers, running, question())) == []


@pytest.mark.parametrize("trouble", [None, TooLarge("too long")])
async def test_an_answer_ends_without_citations_where_nobody_says_them_in_time(
    nats_url: str, trouble: Answer
) -> None:
    async with serving(nats_url, cite_wait_ms=50.0) as (peers, running):
        peers["retriever-0"].answers = citing(trouble)
        answer = await answered(peers, running, question())
        await until(lambda: len(asked(peers)) == 1)  # which may come when the answer is there
    assert citations(answer) == []


async def test_the_next_request_has_the_place_while_the_end_waits(nats_url: str) -> None:
    """The only slot is free before the citations are there."""
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["decode-0"].say(capacity=1)
        peers["retriever-0"].answers = citing(None)
        first = asyncio.create_task(generate(running.stub, question()))
        await say(peers, TEXT)
        await until(lambda: asked(peers))
        second = asyncio.create_task(generate(running.stub, question("and now?")))
        await until(lambda: len(peers["decode-0"].of(Reserve)) == 2)
        assert not first.done()
        for call in (first, second):
            call.cancel()
        await asyncio.wait({first, second})


async def test_nobody_is_asked_without_passages_or_without_a_wait(nats_url: str) -> None:
    async with serving(nats_url, cite_wait_ms=0.0) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        assert citations(await answered(peers, running, question())) == []
        assert asked(peers) == []


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("beyond", [0, 1])
async def test_of_a_long_answer_the_beginning_is_cited(nats_url: str, beyond: int) -> None:
    text = "a" * (MAX_CITED_ANSWER_CHARS + beyond)
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited((CitedSentence(0, MAX_CITED_ANSWER_CHARS),)))
        answer = await answered(peers, running, question(), text)
        (message,) = asked(peers)
    assert message.answer == text[:MAX_CITED_ANSWER_CHARS]
    assert [(cited.start, cited.end) for cited in citations(answer)] == [(0, MAX_CITED_ANSWER_CHARS)]


@pytest.mark.thorough(but="3-told1")
@pytest.mark.parametrize(
    ("level", "told"),
    [
        (DegradationLevel.NO_DRAFTS, TOLD),
        (DegradationLevel.RERANK, []),
        (DegradationLevel.NEW_REQUESTS, []),
    ],
)
async def test_nobody_is_asked_where_the_fleet_goes_without_reranking(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, level: DegradationLevel, told: list[pb.Citation]
) -> None:
    """The pressure comes while the answer is made: its passages were found before."""
    monkeypatch.setattr("services.gateway.admission.degradation.FALL_AFTER_S", math.inf)
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        call = asyncio.create_task(generate(running.stub, question()))
        await peers.placed()
        running.degrade(level)
        await say(peers, TEXT)
        answer = await call
        assert len(asked(peers)) == bool(told)
    assert answer.text == TEXT
    assert citations(answer) == told


async def test_an_answer_that_is_kept_keeps_its_citations(nats_url: str) -> None:
    kept = KeptResponse("r", "m", 1, 5, pack_ids((7,)), TEXT, "stop", "", FOUND, (3, 1, 2), "", CITED)
    message = question()
    message.cache.mode = pb.CACHE_MODE_EXACT
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running):
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        await answered(peers, running, message)
        await until(lambda: peers["retriever-0"].of(KeepResponse))
        ((_, keeping),) = peers["retriever-0"].of(KeepResponse)
        assert isinstance(keeping, KeepResponse)
        assert keeping.response.cited == CITED
        found = ResponseFound(kept, 1, 1.0)
        peers["retriever-0"].answers = lambda got: found if isinstance(got, LookUpResponse) else None
        again = await generate(running.stub, message)
        assert len(asked(peers)) == 1
    assert again.end is not None
    assert list(again.end.citations) == TOLD


@pytest.mark.thorough
async def test_responses_cite_the_document_of_each_sentence_that_has_one(nats_url: str) -> None:
    expected = {
        "type": "file_citation",
        "index": 0,
        "file_id": "rivers.md",
        "filename": "rivers.md",
        "start_index": 0,
        "end_index": 21,
    }
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running), client_of(running) as client:
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        asking = asyncio.create_task(client.responses.create(**RETRIEVING, stream=True))
        await say(peers, TEXT)
        events = [plain(event) async for event in await asking]
    added = [each for each in events if each["type"] == "response.output_text.annotation.added"]
    assert [each["annotation"] for each in added] == [expected]
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["annotations"] == [expected]
    assert told_by(response) == [
        {"start": 0, "end": 21, "prompt_place": 3, "passage_start": 0, "passage_end": 21, "support": 0.75},
        {"start": 22, "end": 33, "prompt_place": 0, "passage_start": 0, "passage_end": 0, "support": 0.25},
    ]


@pytest.mark.thorough
async def test_a_sentence_that_has_the_number_itself_is_cited_once(nats_url: str) -> None:
    text = "Water flows downhill [3]. It is blue [1]."
    cited = (CitedSentence(0, 25, 3, 0, 21, 0.75), CitedSentence(26, 41, 2, 0, 5, 0.75))
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running), client_of(running) as client:
        peers["retriever-0"].answers = citing(AnswerCited(cited))
        asking = asyncio.create_task(client.responses.create(**RETRIEVING))
        await say(peers, text)
        response = plain(await asking)
    annotations = response["output"][0]["content"][0]["annotations"]
    assert [(each["index"], each["filename"]) for each in annotations] == [
        (text.index("[3]"), "rivers.md"),
        (text.index("[1]"), "lakes.md"),
        (26, "rivers.md"),
    ]


async def test_chat_completions_tell_citations_beside_the_passages(nats_url: str) -> None:
    async with serving(nats_url, cite_wait_ms=PATIENCE_MS) as (peers, running), client_of(running) as client:
        peers["retriever-0"].answers = citing(AnswerCited(CITED))
        asking = asyncio.create_task(
            client.chat.completions.create(
                model=RETRIEVING["model"],
                messages=[{"role": "user", "content": "what flows?"}],
                temperature=0.0,
                max_tokens=16,
                extra_body=RETRIEVING["extra_body"],
            )
        )
        await say(peers, TEXT)
        body = plain(await asking)
    assert [each["prompt_place"] for each in told_by(body)] == [3, 0]


def told_by(body: dict[str, Any]) -> Sequence[dict[str, Any]]:
    told: Sequence[dict[str, Any]] = body["penstock"]["requests"][0]["citations"]
    return told
