"""A prompt is shortened to its budgets, and its client hears what was left out, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import AnswerCited, CiteAnswer, CitedSentence, Message, Retrieve, Retrieved, Tokenize
from tests.integration.gateway_peers import Answer
from tests.integration.test_gateway_citations import RETRIEVING, client_of, plain, say_parts
from tests.integration.test_gateway_prompt_passages import (
    LAKE,
    RIVER,
    SOURCE,
    answered,
    answered_again,
    places,
    question,
    retriever_answer,
    serving,
)
from tests.support.metric import value

STILL = "A lake lies still."
ROLES = ("user", "assistant")
BUDGET = 30
"""Tokens of the tests' tokenizer, which has about one to a character, for the line of RIVER alone."""


def trimming(message: pb.GenerateRequest, **budgets: object) -> pb.GenerateRequest:
    message.trimming.CopyFrom(pb.Trimming(**budgets))  # type: ignore[arg-type]  # its fields
    return message


def told(answer: Any) -> list[tuple[str, int]]:
    return [(part.what, part.count) for part in answer.prompt.trimmed]


async def test_sentences_beyond_a_budget_are_left_out_and_told(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        answer, prompt = await answered(peers, running, trimming(question(), max_passage_tokens=BUDGET))
    assert f"[1] {RIVER.text}\n" in prompt
    assert STILL not in prompt
    assert places(answer) == [(RIVER.source, 1), (LAKE.source, 0), (SOURCE.source, 0)]
    assert told(answer) == [("duplicates", 19), ("passages", 2)]
    assert answer.prompt is not None
    assert answer.prompt.warning == ""  # what a budget leaves out is told as that


async def test_a_sentence_that_was_said_is_left_out_where_the_gateway_says_so(nats_url: str) -> None:
    left_out = {"what": "duplicates"}
    async with serving(nats_url, trim_duplicates=True) as (peers, running):
        before = value("penstock_trimmed_requests_total", **left_out)
        answer, prompt = await answered(peers, running, question())
        whole, as_it_is = await answered_again(peers, running, trimming(question(), off=True))
    assert (prompt.count(STILL), as_it_is.count(STILL)) == (1, 20)
    assert (told(answer), told(whole)) == ([("duplicates", 19)], [])
    assert value("penstock_trimmed_requests_total", **left_out) == before + 1
    assert answer.prompt is not None
    lake = answer.prompt.passages[1]
    assert [lake.text[span.start : span.end] for span in lake.in_prompt] == [STILL]


async def test_a_citation_names_the_words_of_the_whole_passage(nats_url: str) -> None:
    whole = replace(RIVER, text=f"Fish swim. Rain falls. {RIVER.text}")
    asked: list[CiteAnswer] = []

    def answers(message: Message) -> Answer:
        if isinstance(message, Retrieve):
            return Retrieved((whole,), "", 1, 1)
        if isinstance(message, CiteAnswer):
            asked.append(message)
            return AnswerCited((CitedSentence(0, 1, 1, 0, len(message.passages[0]), 0.9),))
        return retriever_answer(message)

    async with serving(nats_url) as (peers, running):
        peers["retriever-0"].answers = answers
        answer, _ = await answered(peers, running, trimming(question(), max_passage_tokens=BUDGET))
    assert [message.passages for message in asked] == [(RIVER.text,)]
    assert answer.end is not None
    (cited,) = answer.end.citations
    assert whole.text[cited.passage_start : cited.passage_end] == RIVER.text


async def test_over_http_it_is_told_although_nothing_was_asked_to_be(nats_url: str) -> None:
    body: dict[str, Any] = {**RETRIEVING, "extra_body": {"penstock": {"retrieval": True}}}
    async with (
        serving(nats_url, trim_passage_tokens=BUDGET) as (peers, running),
        client_of(running) as client,
    ):
        asked = asyncio.create_task(client.responses.create(**body))
        await say_parts(peers)
        response = plain(await asked)
        sent = [message for _, message in peers["tokenizer-0"].of(Tokenize)]
    assert all(isinstance(each, Tokenize) and each.trimming.passage_tokens == BUDGET for each in sent)
    (request,) = response["penstock"]["requests"]
    assert [(part["what"], part["count"]) for part in request["trimmed"]] == [
        ("duplicates", 19),
        ("passages", 2),
    ]


async def test_a_chat_goes_without_its_oldest_turns_and_says_so(nats_url: str) -> None:
    def message(**budgets: object) -> pb.GenerateRequest:
        turns = [pb.ChatMessage(role=role, content=f"{role} {at}") for at in range(4) for role in ROLES]
        chat = pb.ChatPrompt(
            messages=[*turns, pb.ChatMessage(role="user", content="why?")], template_optional=True
        )
        asked = question()
        asked.ClearField("retrieval")
        asked.chat.CopyFrom(chat)
        return trimming(asked, **budgets)

    async with serving(nats_url) as (peers, running):
        whole, prompt = await answered(peers, running, message())
        assert whole.prompt is not None
        budget = whole.prompt.prompt_tokens - 1
        shorter, rest = await answered_again(peers, running, message(max_prompt_tokens=budget))
        least, _ = await answered_again(peers, running, message(max_prompt_tokens=1))
    assert prompt.endswith(rest)
    assert told(shorter) == [("turns", 2)]
    assert told(least) == [("turns", 8)]
    assert least.prompt is not None
    assert "its budget is 1 " in least.prompt.warning
