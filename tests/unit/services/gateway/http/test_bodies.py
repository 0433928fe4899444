"""Bodies of OpenAI's interfaces as requests of the contract; what is wrong is named as clients know it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.chat import read_chat
from services.gateway.http.completions.completion import AskedCompletion
from services.gateway.http.completions.error_object import error_object
from services.gateway.http.completions.text_completion import read_text_completion
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.request.choices import MAX_CHOICES
from services.gateway.request.request import MAX_CACHE_SALT_CHARS, validate_request
from shared.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 77
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": true}'}}
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}

Read = Callable[[JsonFields, dict[str, str], int], AskedCompletion]


def chat(headers: dict[str, str] | None = None, **body: Any) -> AskedCompletion:
    return read_chat(JsonFields({"messages": HELLO, **body}), headers or {}, DEFAULT_MAX_TOKENS)


def text(headers: dict[str, str] | None = None, **body: Any) -> AskedCompletion:
    return read_text_completion(JsonFields({"prompt": "hello", **body}), headers or {}, DEFAULT_MAX_TOKENS)


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


F = tool()


def called(**function: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "f", "arguments": "{}", **function}}


def calling(calls: list[Any], **message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": calls, **message}]}


def refusal(read: Callable[..., AskedCompletion], **body: Any) -> dict[str, Any]:
    """The error object of a wrong body, wherever it is found out."""

    def validate() -> None:
        completion = read(**body)
        for request in completion.choices.prompts:
            validate_request(request, drawn_seed=0, cache_salt=completion.options.cache_salt)

    with pytest.raises(InvalidRequest) as caught:
        validate()
    error: dict[str, Any] = error_object(caught.value)[2]["error"]
    return error


SAMPLING_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a string for a number": ({"temperature": "hot"}, "temperature"),
    "true for a number": ({"temperature": True}, "temperature"),
    "out of range": ({"temperature": -1}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "top_k": ({"top_k": -2}, "top_k"),
    "min_p": ({"min_p": 2}, "min_p"),
    "repetition_penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "presence_penalty": ({"presence_penalty": 2.5}, "presence_penalty"),
    "frequency_penalty": ({"frequency_penalty": []}, "frequency_penalty"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "max_completion_tokens": ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    "min over max": ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "seed": ({"seed": "x"}, "seed"),
    "stop entries": ({"stop": ["a", 3]}, "stop[1]"),
    "too many stops": ({"stop": ["x"] * 17}, "stop"),
    "empty stop": ({"stop": [""]}, "stop[0]"),
    "stop patterns": ({"stop_regex": ["a", "b$"]}, "stop_regex[1]"),
    "too many stop patterns": ({"stop_regex": ["x"] * 9}, "stop_regex"),
    "stop ids": ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
    "ignore_eos": ({"ignore_eos": 1}, "ignore_eos"),
    "bias names": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "bias values": ({"logit_bias": {"3": 101}}, "logit_bias.3"),
    "bias type": ({"logit_bias": [1]}, "logit_bias"),
    "n": ({"n": 0}, "n"),
    "n above": ({"n": MAX_CHOICES + 1}, "n"),
    "stream": ({"stream": "yes"}, "stream"),
    "stream options without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "format": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "format type": ({"response_format": "json"}, "response_format"),
    "no schema": (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
    ),
    "schema type": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
        "response_format.json_schema.schema",
    ),
    "model": ({"model": 5}, "model"),
    "long model": ({"model": "x" * 300}, "model"),
    "penstock": ({"penstock": 5}, "penstock"),
    "unknown option": ({"penstock": {"deadlin_ms": 5}}, "penstock.deadlin_ms"),
    "deadline": ({"penstock": {"deadline_ms": 0}}, "penstock.deadline_ms"),
    "deadline type": ({"penstock": {"deadline_ms": "soon"}}, "penstock.deadline_ms"),
    "ttft deadline": ({"penstock": {"ttft_deadline_ms": -1}}, "penstock.ttft_deadline_ms"),
    "inter-token deadline": (
        {"penstock": {"inter_token_deadline_ms": -1}},
        "penstock.inter_token_deadline_ms",
    ),
    "priority": ({"penstock": {"priority": "urgent"}}, "penstock.priority"),
    "retrieval": ({"penstock": {"retrieval": "yes"}}, "penstock.retrieval"),
    "retrieval k": ({"penstock": {"retrieval": {"k": 17}}}, "penstock.retrieval.k"),
    "salt": ({"cache_salt": "x" * (MAX_CACHE_SALT_CHARS + 1)}, "cache_salt"),
    "two constraints": (
        {"response_format": {"type": "json_object"}, "penstock": {"regex": "a"}},
        "penstock.regex",
    ),
    "timeline": ({"penstock": {"timeline": 1}}, "penstock.timeline"),
}
CHAT_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "messages type": ({"messages": "hello"}, "messages"),
    "message type": ({"messages": ["hello"]}, "messages[0]"),
    "role": ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "content": ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
    ),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "logprobs": ({"logprobs": 1}, "logprobs"),
    "tools type": ({"tools": {"f": {}}}, "tools"),
    "tool without a function": ({"tools": [{"type": "function"}]}, "tools[0].function"),
    "tool of another type": ({"tools": [F, {"type": "custom"}]}, "tools[1].type"),
    "tool name": ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
    "tool description": ({"tools": [tool(description=3)]}, "tools[0].function.description"),
    "tool parameters": ({"tools": [tool(parameters="x")]}, "tools[0].function.parameters"),
    "tool schema": ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters"),
    "tools twice": ({"tools": [F, F]}, "tools[1].function.name"),
    "many tools": ({"tools": [tool(name=f"f{n}") for n in range(129)]}, "tools"),
    "tool_choice": ({"tools": [F], "tool_choice": "sometimes"}, "tool_choice"),
    "tool_choice of another type": ({"tools": [F], "tool_choice": {"type": "x"}}, "tool_choice.type"),
    "tool_choice without a name": (
        {"tools": [F], "tool_choice": {"type": "function", "function": {}}},
        "tool_choice.function.name",
    ),
    "tool_choice of an unknown one": (
        {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
    ),
    "tool_choice without tools": ({"tool_choice": "required"}, "tools"),
    "parallel_tool_calls": ({"tools": [F], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    "tools and a regex": ({"tools": [F], "penstock": {"regex": "a"}}, "tools"),
    "functions": ({"functions": [{"name": "f"}]}, "functions"),
    "function_call": ({"function_call": "auto"}, "function_call"),
    "calls of a user": (calling([CALL], role="user"), "messages[0].tool_calls"),
    "call of another type": (calling([{"type": "custom"}]), "messages[0].tool_calls[0].type"),
    "call without an id": (calling([{**CALL, "id": ""}]), "messages[0].tool_calls[0].id"),
    "call name": (calling([called(name="")]), "messages[0].tool_calls[0].function.name"),
    "call arguments": (calling([called(arguments="{")]), "messages[0].tool_calls[0].function.arguments"),
    "call arguments type": (
        calling([called(arguments={})]),
        "messages[0].tool_calls[0].function.arguments",
    ),
    "an old call": (calling([], function_call={"name": "f"}), "messages[0].function_call"),
    "result of nothing": (
        {"messages": [{"role": "tool", "content": "3", "tool_call_id": "x"}]},
        "messages[0].tool_call_id",
    ),
    "speaker": ({"messages": [{"role": "user", "content": "x", "name": "a b"}]}, "messages[0].name"),
}
TEXT_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"prompt": None}, "prompt"),
    "empty": ({"prompt": ""}, "prompt"),
    "none": ({"prompt": []}, "prompt"),
    "type": ({"prompt": 5}, "prompt"),
    "mixed": ({"prompt": ["a", 5]}, "prompt[0]"),
    "ids": ({"prompt": [[1], [2, -1]]}, "prompt[1][1]"),
    "no ids": ({"prompt": [[1], None]}, "prompt"),
    "logprobs": ({"logprobs": 21}, "logprobs"),
    "best_of": ({"best_of": 2}, "best_of"),
    "suffix": ({"suffix": "x"}, "suffix"),
    "choices": ({"prompt": ["a", "b"], "n": MAX_CHOICES // 2 + 1}, "n"),
}


@pytest.mark.parametrize("read", [chat, text])
@pytest.mark.parametrize("name", SAMPLING_WRONG)
def test_a_wrong_field_is_named(read: Callable[..., AskedCompletion], name: str) -> None:
    body, param = SAMPLING_WRONG[name]
    error = refusal(read, **body)
    assert (error["param"], error["type"], error["code"]) == (param, "invalid_request_error", "invalid_value")
    assert "sampling." not in error["message"]


@pytest.mark.parametrize("name", CHAT_WRONG)
def test_a_wrong_field_of_a_chat_is_named(name: str) -> None:
    body, param = CHAT_WRONG[name]
    assert refusal(chat, **body)["param"] == param


@pytest.mark.parametrize("name", TEXT_WRONG)
def test_a_wrong_field_of_a_text_completion_is_named(name: str) -> None:
    body, param = TEXT_WRONG[name]
    assert refusal(text, **body)["param"] == param


@pytest.mark.parametrize("read", [chat, text])
def test_a_null_is_what_is_left_out_and_unknown_fields_are_tolerated(
    read: Callable[..., AskedCompletion],
) -> None:
    nulls = dict.fromkeys(["temperature", "stop", "n", "seed", "logprobs", "stream", "response_format"])
    assert read(**nulls, user=None, service_tier=7, store=True, metadata={"a": 1}) == read()


@pytest.mark.parametrize("read", [chat, text])
def test_a_user_keeps_to_a_model_unless_the_request_has_another_key(
    read: Callable[..., AskedCompletion],
) -> None:
    (user,) = read(user="u" * 300).choices.prompts
    (key,) = read(user="u", penstock={"sticky_key": "k", "fallback": ["a", "b"]}).choices.prompts
    assert (user.sticky_key, key.sticky_key) == ("u" * 256, "k")
    assert (key.fallback.allowed, list(key.fallback.models)) == (True, ["a", "b"])


@pytest.mark.parametrize("read", [chat, text])
def test_whether_another_model_may_answer_is_a_word_or_models(read: Callable[..., AskedCompletion]) -> None:
    (never,) = read(penstock={"fallback": False}).choices.prompts
    assert never.HasField("fallback")
    assert not never.fallback.allowed
    with pytest.raises(InvalidRequest, match=r"penstock\.fallback"):
        read(penstock={"fallback": 3})


def test_sampling_fields_reach_the_contract() -> None:
    request = text(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=2,
        min_tokens=2,
        max_tokens=5,
        seed=9,
        stop="end",
        stop_regex="e+nd",
        stop_token_ids=[4],
        ignore_eos=True,
        logit_bias={"3": -100, "8": 2.5},
        logprobs=2,
    ).choices.prompts[0]
    assert request.sampling == pb.Sampling(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=2,
        min_tokens=2,
        max_tokens=5,
        seed=9,
        stop=["end"],
        stop_regex=["e+nd"],
        stop_token_ids=[4],
        ignore_eos=True,
        logit_bias={3: -100.0, 8: 2.5},
        logprobs=2,
    )


def test_a_top_k_of_minus_one_is_none() -> None:
    assert not text(top_k=-1).choices.prompts[0].sampling.HasField("top_k")


def test_the_newer_name_of_max_tokens_counts_and_without_either_the_configured_number() -> None:
    assert chat(max_tokens=5, max_completion_tokens=6).choices.prompts[0].sampling.max_tokens == 6
    assert chat(max_tokens=5).choices.prompts[0].sampling.max_tokens == 5
    assert chat().choices.prompts[0].sampling.max_tokens == DEFAULT_MAX_TOKENS


def _seeds(completion: AskedCompletion) -> list[int]:
    """The seeds of all choices, where those that are drawn are 5, 6, 7 …"""
    draw = count(5)
    prompt = completion.choices.prompts[0]
    valid = validate_request(prompt, drawn_seed=next(draw))
    return [request.sampling.seed for request in completion.choices.share(prompt, valid, partial(next, draw))]


def test_choices_of_a_prompt_share_it() -> None:
    asked = chat(n=3).choices
    valid = validate_request(asked.prompts[0], drawn_seed=0)
    assert all(each.chat is valid.chat for each in asked.share(asked.prompts[0], valid, lambda: 0))


def test_choices_of_a_prompt_have_seeds_that_follow_from_the_one_given() -> None:
    assert _seeds(chat(n=3, seed=-2)) == [2**64 - 2, 2**64 - 1, 0]
    assert _seeds(chat(n=3)) == [5, 6, 7], "each is drawn"


def test_prompts_come_as_texts_or_as_ids_and_each_has_its_choices_in_order() -> None:
    asked = text(prompt=["a", "b"], n=2).choices
    assert ([request.text for request in asked.prompts], asked.n, len(asked)) == (["a", "b"], 2, 4)
    assert [list(request.token_ids.ids) for request in text(prompt=[[1, 2], [3]]).choices.prompts] == [
        [1, 2],
        [3],
    ]
    assert list(text(prompt=[1, 2]).choices.prompts[0].token_ids.ids) == [1, 2]


def test_an_echo_is_the_prompt_as_it_came_and_with_logprobs_those_of_the_prompt() -> None:
    assert [echo.text for echo in text(prompt=["a", "b"], n=2, echo=True).echoes] == ["a", "a", "b", "b"]
    assert [list(echo.token_ids) for echo in text(prompt=[[1, 2], [3]], echo=True).echoes] == [[1, 2], [3]]
    assert text(logprobs=2, echo=True).choices.prompts[0].sampling.prompt_logprobs == 2
    assert not text(logprobs=2).choices.prompts[0].sampling.HasField("prompt_logprobs")


def test_tools_reach_the_contract() -> None:
    tools = [tool(description="d", parameters=SCHEMA, strict=True), tool(name="g")]
    asked = chat(tools=tools, parallel_tool_calls=False).choices.prompts[0].chat
    assert list(asked.tools) == [
        pb.Tool(name="f", description="d", parameters=json.dumps(SCHEMA)),
        pb.Tool(name="g"),
    ]
    assert (asked.tool_choice, asked.tool_name) == (pb.TOOL_CHOICE_AUTO, "")
    assert asked.HasField("parallel_tool_calls")
    assert not asked.parallel_tool_calls


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", (pb.TOOL_CHOICE_AUTO, "")),
        ("none", (pb.TOOL_CHOICE_NONE, "")),
        ("required", (pb.TOOL_CHOICE_REQUIRED, "")),
        ({"type": "function", "function": {"name": "f"}}, (pb.TOOL_CHOICE_AUTO, "f")),
    ],
)
def test_every_choice_of_tools_reaches_the_contract(choice: Any, wanted: tuple[int, str]) -> None:
    asked = chat(tools=[F], tool_choice=choice).choices.prompts[0].chat
    assert (asked.tool_choice, asked.tool_name) == wanted


def test_functions_of_old_that_may_not_be_called_are_tolerated() -> None:
    assert chat(functions=[], function_call="none", tool_choice="none") == chat(tool_choice="none")


def test_a_round_trip_of_calls_reaches_the_contract() -> None:
    turns = [
        {"role": "user", "content": "x", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
    ]
    assert list(chat(messages=turns).choices.prompts[0].chat.messages) == [
        pb.ChatMessage(role="user", content="x", name="Ann"),
        pb.ChatMessage(
            role="assistant", tool_calls=[pb.ToolCall(id="c1", name="f", arguments='{"a": true}')]
        ),
        pb.ChatMessage(role="tool", content="3", tool_call_id="c1"),
    ]


def test_a_message_may_come_in_parts_and_roles_are_said_as_they_are() -> None:
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    request = chat(messages=[{"role": "developer", "content": parts}, *HELLO]).choices.prompts[0]
    assert [(message.role, message.content) for message in request.chat.messages] == [
        ("developer", "be brief"),
        ("user", "hello"),
    ]


def test_logprobs_of_a_chat_are_those_of_the_chosen_token_and_as_many_more() -> None:
    assert chat(logprobs=True).choices.prompts[0].sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).choices.prompts[0].sampling.logprobs == 4
    assert not chat(logprobs=False).choices.prompts[0].sampling.HasField("logprobs")


def test_a_response_format_is_a_constraint() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    assert json.loads(chat(response_format=wanted).choices.prompts[0].sampling.json_schema) == SCHEMA
    assert chat(response_format={"type": "json_object"}).choices.prompts[0].sampling.json_object
    assert not chat(response_format={"type": "text"}).choices.prompts[0].sampling.WhichOneof("constraint")


def test_options_come_in_headers_or_in_the_body_which_wins() -> None:
    headers = {
        "x-penstock-deadline-ms": "900",
        "x-penstock-ttft-deadline-ms": "300",
        "x-penstock-inter-token-deadline-ms": "50",
        "x-penstock-client-sent-unix-us": "77",
        "x-penstock-priority": "high",
        "x-penstock-retrieval": "on",
        "x-penstock-timeline": "1",
        "x-penstock-cache-salt": "pepper",
    }
    completion = chat(headers, penstock={"deadline_ms": 800, "retrieval": {"k": 2, "may_degrade": False}})
    request, options = completion.choices.prompts[0], completion.options
    assert (request.deadline_ms, request.ttft_deadline_ms, request.inter_token_deadline_ms) == (800, 300, 50)
    assert (request.client_sent_unix_us, request.priority) == (77, pb.PRIORITY_HIGH)
    assert request.retrieval == pb.Retrieval(enabled=True, k=2, may_degrade=False)
    assert (options.timeline, options.cache_salt) == (True, "pepper")
    assert chat(headers).choices.prompts[0].retrieval == pb.Retrieval(enabled=True)


def test_what_is_retrieved_is_said_in_an_object() -> None:
    options = {
        "corpus": "news",
        "query": "rain",
        "order": "best_first",
        "max_tokens": 300,
        "filters": {"lang": "en", "year": ["2024", "2025"]},
    }
    assert chat(penstock={"retrieval": options}).choices.prompts[0].retrieval == pb.Retrieval(
        enabled=True,
        may_degrade=True,
        corpus="news",
        query="rain",
        order=pb.PASSAGE_ORDER_BEST_FIRST,
        max_tokens=300,
        filters=[
            pb.MetadataFilter(field="lang", values=["en"]),
            pb.MetadataFilter(field="year", values=["2024", "2025"]),
        ],
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("order", "worst_first"), ("filters.year", 2024), ("filters.year", ["2024", 5]), ("corpus", 7)],
)
def test_a_wrong_part_of_retrieval_is_named(option: str, value: object) -> None:
    group, _, field = option.rpartition(".")
    given = {group: {field: value}} if group else {field: value}
    assert refusal(chat, penstock={"retrieval": given})["param"] == f"penstock.retrieval.{option}"


def test_a_wrong_header_is_named_as_the_option_that_it_is() -> None:
    assert refusal(chat, headers={"x-penstock-deadline-ms": "soon"})["param"] == "penstock.deadline_ms"
    assert refusal(chat, headers={"x-penstock-timeline": "maybe"})["param"] == "penstock.timeline"


@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_other_grammars_are_options(kind: str) -> None:
    sampling = text(penstock={kind: "a+"}).choices.prompts[0].sampling
    assert (sampling.WhichOneof("constraint"), getattr(sampling, kind)) == (kind, "a+")
