"""Servers with OpenAI's interfaces: what is sent, what is read, and every way in which a call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from services.cli.bench.targets import event_stream
from services.cli.bench.targets.event_stream import DataEvents
from services.cli.bench.targets.openai_target import OpenAiTarget
from services.cli.bench.targets.openai_words import call_body
from services.cli.bench.targets.probe import USUAL_CHARS_PER_TOKEN, probe_target
from services.cli.bench.targets.target import (
    MAX_TOLD_CHARS,
    CallEnded,
    CallFacts,
    CallOutcome,
    StreamPiece,
    TargetCall,
    TargetSampling,
)
from tests.support.scripted_server import (
    Asked,
    Scripted,
    ScriptedServer,
    chat_piece,
    scripted_server,
    told_story,
    usage_piece,
)
from tests.support.virtual_time import run_virtual
from tests.unit.services.cli.bench.plan.texts import prose

CALL = TargetCall((("system", "Be brief."), ("user", "Hello?")), 16)
SAMPLING = TargetSampling("a-model", 0.5, ignore_eos=True)


def ask(
    answer: Callable[[Asked], Scripted], interface: str = "chat", calls: int = 1
) -> tuple[list[StreamPiece], CallFacts, ScriptedServer]:
    async def main() -> tuple[list[StreamPiece], CallFacts, ScriptedServer]:
        async with scripted_server(answer) as server:
            target = OpenAiTarget(server.url + "/v1/", interface, SAMPLING)
            try:
                for _ in range(calls):
                    facts = CallFacts()
                    async with aclosing(target.pieces(CALL, facts)) as stream:
                        pieces = [piece async for piece in stream]
                return pieces, facts, server
            finally:
                await target.close()
                await asyncio.sleep(1.0)

    return run_virtual(main())


def events(*data: Any, **options: Any) -> Callable[[Asked], Scripted]:
    return lambda _: Scripted(tuple((0.0, each) for each in data), **options)


def ended(answer: Callable[[Asked], Scripted], interface: str = "chat") -> CallEnded:
    with pytest.raises(CallEnded) as raised:
        ask(answer, interface)
    return raised.value


def test_a_chat_is_sent_and_read() -> None:
    usage = {**usage_piece(9, 3), "id": "chatcmpl-7"}
    usage["usage"]["prompt_tokens_details"] = {"cached_tokens": 4}
    usage["usage"]["completion_tokens_details"] = {"accepted_prediction_tokens": 2}
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    pieces, facts, server = ask(events(role, chat_piece("Hi"), chat_piece(" you"), usage))
    assert pieces == [StreamPiece("Hi"), StreamPiece(" you")]
    assert facts == CallFacts("scripted", "chatcmpl-7", 9, 3, 4, 2, ended=True)
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body == {
        "model": "a-model",
        "temperature": 0.5,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
    }


@pytest.mark.parametrize(
    ("interface", "field", "value"),
    [
        ("chat", "response_format", {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}),
        ("responses", "text", {"format": {"type": "json_schema", "name": "answer", "schema": {}}}),
    ],
)
def test_a_schema_and_passages_are_asked_for_in_the_words_of_the_interface(
    interface: str, field: str, value: dict[str, Any]
) -> None:
    body = call_body(interface, replace(CALL, json_schema="{}", passages=7), SAMPLING)
    assert body[field] == value
    assert body["penstock"] == {"retrieval": {"enabled": True, "k": 7, "may_degrade": False}}


def test_a_completion_is_sent_and_read() -> None:
    pieces, facts, server = ask(events({"choices": [{"text": "Hi"}]}, usage_piece(5, 1)), "completions")
    assert (pieces, facts.prompt_tokens) == ([StreamPiece("Hi")], 5)
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].body["prompt"] == "Be brief.\n\nHello?"


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete"])
def test_a_response_is_sent_and_read(last: str) -> None:
    usage = {"input_tokens": 8, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}
    answer = events(
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": last, "response": {"id": "resp_1", "model": "m", "usage": usage}},
        done=False,
    )
    pieces, facts, server = ask(answer, "responses")
    assert pieces == [StreamPiece("Hi")]
    assert (facts.prompt_tokens, facts.completion_tokens, facts.cached_tokens) == (8, 2, 3)
    assert server.asked[0].path == "/v1/responses"
    assert server.asked[0].body["max_output_tokens"] == 16


@pytest.mark.parametrize(
    ("delta", "thinking"),
    [
        ({"reasoning_content": "Hm", "content": None}, True),
        ({"reasoning": "Hm"}, True),
        ({"tool_calls": [{"function": {"arguments": "Hm"}}]}, False),
    ],
)
def test_thoughts_and_calls_of_a_model_are_text_too(delta: dict[str, Any], thinking: bool) -> None:
    pieces, _, _ = ask(events({"choices": [{"delta": delta}]}))
    assert pieces == [StreamPiece("Hm", thinking=thinking)]


def test_what_penstock_alone_says_is_read() -> None:
    phases = [{"name": "decode", "duration_us": 1500}, {"name": "decode", "duration_us": 500}]
    request = {
        "usage": {"accepted_draft_tokens": 5, "replacements": 1},
        "timeline": {"phases": phases},
        "cached": {"request_id": "x"},
    }
    _, facts, server = ask(events(chat_piece("Hi"), {"choices": [], "penstock": {"requests": [request]}}))
    assert facts.phases_ms == {"decode": 2.0}
    assert (facts.drafted_tokens, facts.replacements, facts.earlier_answer) == (5, 1, True)
    assert server.asked[0].headers["x-penstock-timeline"] == "true"


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [
        (429, {"message": "later", "code": "overloaded"}, CallOutcome.SHED),
        (429, {"message": "later"}, CallOutcome.SHED),
        (503, "not now", CallOutcome.SHED),
        (503, {"message": "nobody", "code": "unavailable"}, CallOutcome.FAILED),
        (504, {"message": "late", "code": "deadline_expired"}, CallOutcome.EXPIRED),
        (408, None, CallOutcome.EXPIRED),
        (400, {"message": "long", "code": "context_length_exceeded"}, CallOutcome.REFUSED),
        (401, {"message": "who?"}, CallOutcome.REFUSED),
        (500, {"message": "oh"}, CallOutcome.FAILED),
    ],
)
def test_a_call_ends_as_its_status_and_code_say(status: int, error: Any, outcome: CallOutcome) -> None:
    end = ended(lambda _: Scripted(status=status, body={"error": error} if error else {}))
    assert end.outcome is outcome
    assert end.kind.startswith(f"http {status}")


def test_a_page_that_is_no_json_is_told_in_part() -> None:
    end = ended(lambda _: Scripted(status=502, body=b"<html>" + b"x" * 1000))
    assert (end.outcome, len(end.told)) == (CallOutcome.FAILED, MAX_TOLD_CHARS)


@pytest.mark.parametrize(
    ("answer", "outcome", "kind"),
    [
        (events(chat_piece("Hi"), cut=True), CallOutcome.FAILED, "connection: ClientPayloadError"),
        (events(chat_piece("Hi"), done=False), CallOutcome.FAILED, "cut stream"),
        (events(b"{"), CallOutcome.FAILED, "no JSON in the stream"),
        (events(b"[" * 100_000), CallOutcome.FAILED, "no JSON in the stream"),
        (events([1]), CallOutcome.FAILED, "no object in the stream"),
        (
            events({"error": {"message": "oh", "code": "internal"}}),
            CallOutcome.FAILED,
            "in the stream: internal",
        ),
        (events({"error": {"code": "overloaded"}}), CallOutcome.SHED, "in the stream: overloaded"),
        (
            events({"error": {"code": "deadline_expired"}}),
            CallOutcome.EXPIRED,
            "in the stream: deadline_expired",
        ),
    ],
)
def test_a_stream_that_breaks_ends_its_call(
    answer: Callable[[Asked], Scripted], outcome: CallOutcome, kind: str
) -> None:
    end = ended(answer)
    assert (end.outcome, end.kind) == (outcome, kind)


def test_a_server_that_is_not_there_ends_the_call() -> None:
    async def main() -> None:
        target = OpenAiTarget("http://127.0.0.1:9", "chat", SAMPLING)
        try:
            async with aclosing(target.pieces(CALL, CallFacts())) as pieces:
                await anext(pieces)
        finally:
            await target.close()

    with pytest.raises(CallEnded, match="connection: ClientConnectorError"):
        run_virtual(main())


def test_one_connection_serves_call_after_call() -> None:
    _, _, server = ask(lambda _: told_story(2), calls=3)
    assert (len(server.asked), server.connections) == (3, 1)


def test_a_kept_connection_that_the_server_closes_is_no_failure() -> None:
    """llama.cpp closes one a moment after an answer; whoever asks in that moment asks again."""

    asked: list[Asked] = []

    def answer(one: Asked) -> Scripted:
        asked.append(one)
        return Scripted(silent=True) if len(asked) in (2, 4) else told_story(1)

    pieces, _, server = ask(answer, calls=3)
    assert [piece.text for piece in pieces] == ["word0 "]
    assert (len(asked), server.connections) == (5, 3)


def test_a_fresh_connection_that_the_server_closes_ends_the_call() -> None:
    asked: list[Asked] = []

    def answer(one: Asked) -> Scripted:
        asked.append(one)
        return Scripted(silent=True)

    end = ended(answer)
    assert (end.outcome, end.kind) == (CallOutcome.FAILED, "connection: ServerDisconnectedError")
    assert len(asked) == 1


def test_events_come_whole_however_bytes_are_cut() -> None:
    stream = b"event: x\r\ndata: one\r\n\r\n: a comment\ndata:two\n\ndata: three"
    for cut in range(len(stream)):
        events_of = DataEvents()
        assert [*events_of.feed(stream[:cut]), *events_of.feed(stream[cut:])] == [b"one", b"two"]


def test_an_event_has_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 10)
    assert list(DataEvents().feed(b"data: 1234")) == []
    with pytest.raises(CallEnded, match="endless event"):
        list(DataEvents().feed(b"data: 12345"))


def probe(answer: Callable[[Asked], Scripted], model: str = "") -> tuple[float, bool, str]:
    async def main() -> tuple[float, bool, str]:
        async with scripted_server(answer) as server:
            target = OpenAiTarget(server.url, "chat", TargetSampling(model))
            try:
                name = await target.find_model()
                traits = await probe_target(target, name, prose(), 1)
            finally:
                await target.close()
            return traits.chars_per_token, traits.counted, traits.model

    return run_virtual(main())


def models_or(answer: Callable[[Asked, int], Scripted]) -> Callable[[Asked], Scripted]:
    """Answer a list of models; a prompt has as many tokens as half its characters, and 20 of a template."""

    def answered(asked: Asked) -> Scripted:
        if asked.path == "/v1/models":
            return Scripted(body={"data": [{"id": "first"}, {"id": "second"}]})
        return answer(asked, len(asked.body["messages"][0]["content"]) // 2 + 20)

    return answered


def test_the_characters_of_a_token_are_measured_without_the_template() -> None:
    chars, counted, model = probe(models_or(lambda _, tokens: Scripted(((0.0, usage_piece(tokens, 1)),))))
    assert chars == pytest.approx(2.0, rel=0.01)
    assert (counted, model) == (True, "first")


def test_a_model_with_little_context_is_probed_with_less() -> None:
    def small(_: Asked, tokens: int) -> Scripted:
        if tokens > 300:
            return Scripted(status=400, body={"error": {"code": "context_length_exceeded"}})
        return Scripted(((0.0, usage_piece(tokens, 1)),))

    chars, counted, _ = probe(models_or(small))
    assert chars == pytest.approx(2.0, rel=0.05)
    assert counted


def test_a_server_that_does_not_count_is_assumed_usual() -> None:
    chars, counted, _ = probe(models_or(lambda *_: Scripted(((0.0, chat_piece("Hi")),))))
    assert chars == USUAL_CHARS_PER_TOKEN
    assert not counted


def test_a_model_that_is_named_is_not_looked_for() -> None:
    assert probe(lambda _: Scripted(((0.0, usage_piece(5, 1)),)), "mine")[2] == "mine"


def test_a_long_list_of_models_is_read_whole_and_one_that_is_too_long_is_none() -> None:
    def listing(count: int) -> Callable[[Asked], Scripted]:
        models = [{"id": f"model-{number}", "about": "x" * 1000} for number in range(count)]
        usage = Scripted(((0.0, usage_piece(5, 1)),))
        return lambda asked: Scripted(body={"data": models}) if asked.path == "/v1/models" else usage

    assert probe(listing(900))[2] == "model-0"
    with pytest.raises(CallEnded, match="no list of models"):
        probe(listing(1100))


@pytest.mark.parametrize("body", [{"data": []}, {}, [], b"x"])
def test_a_server_without_models_says_what_to_do(body: Any) -> None:
    with pytest.raises(CallEnded, match="--model"):
        probe(lambda _: Scripted(body=body))


def test_a_probe_that_fails_says_how() -> None:
    with pytest.raises(CallEnded, match="http 500"):
        probe(models_or(lambda *_: Scripted(status=500, body={"error": {"message": "broken"}})))
