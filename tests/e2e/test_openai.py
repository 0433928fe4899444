"""Programs that are made for OpenAI's interface, unchanged, against a whole stack with the shipped model.

And what our own client does with a chat model.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from typing import Annotated, Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.e2e.test_ways_in import run
from tests.support.client import connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.http import call, http_client
from tests.support.stack import Stack

QUESTION: Any = [{"role": "user", "content": "How many tokens does a block hold?"}]
STORY = "Once upon a time"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Oslo", "Rome"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock"}},
]
CALL_TIMEOUT_S = 60


def only_call(choice: Any) -> Any:
    (call,) = choice.message.tool_calls
    return call


def check_arguments(name: str, text: str) -> None:
    """Of a call of one of TOOLS."""
    arguments = json.loads(text)
    if name == "clock":
        assert arguments == {}
        return
    assert name == "weather"
    assert set(arguments) == {"city", "days"}
    assert arguments["city"] in ("Oslo", "Rome")
    assert 1 <= arguments["days"] <= 9


class Pet(BaseModel):
    """As a program that uses the client describes what it wants."""

    name: Annotated[str, Field(max_length=12)]
    old: bool


@pytest.fixture
def stack(documented_stack: Stack) -> Stack:
    return documented_stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{stack.http}/v1", api_key="none", timeout=CALL_TIMEOUT_S) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_chat_is_answered_with_exact_usage(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_adds_up_to_the_answer_at_once(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": QUESTION, "max_tokens": 24, "seed": 5}
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.thorough
async def test_an_asynchronous_client_streams_the_text_that_grpc_has(stack: Stack, model: str) -> None:
    async with connect(stack.grpc) as stub:
        ours = await generate(stub, request(STORY, temperature=1.0, seed=7, max_tokens=24))
    async with AsyncOpenAI(base_url=f"http://{stack.http}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model=model, prompt=STORY, seed=7, temperature=1.0, max_tokens=24, stream=True
        )
        text = "".join([choice.text async for chunk in stream for choice in chunk.choices])
    assert text == ours.text


def test_structured_output_is_parsed_by_the_client(client: OpenAI, model: str) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, response_format=wanted, max_tokens=400, temperature=0
    )
    assert answer.choices[0].message.content is not None
    parsed = json.loads(answer.choices[0].message.content)
    assert set(parsed) == {"name", "old"}
    assert isinstance(parsed["old"], bool)


def test_a_response_is_answered_and_goes_on_from_what_it_was(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "instructions": "Be brief.", "max_output_tokens": 12, "temperature": 0}
    first = client.responses.create(**options, input=QUESTION[0]["content"], metadata={"a": "b"})
    assert first.output_text
    assert first.usage is not None
    assert 0 < first.usage.output_tokens <= 12
    assert first.metadata == {"a": "b"}
    again: Any = [*QUESTION, *(item.model_dump() for item in first.output), *QUESTION]
    second = client.responses.create(**options, input=again)
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


@pytest.mark.thorough
def test_a_stream_of_a_response_adds_up_to_the_response_at_once(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "input": QUESTION, "max_output_tokens": 24, "extra_body": {"seed": 5}}
    whole = client.responses.create(**options)
    happened: list[Any] = list(client.responses.create(**options, stream=True))
    assert "".join(e.delta for e in happened if e.type == "response.output_text.delta") == whole.output_text
    assert happened[0].type == "response.created"
    assert happened[-1].type == f"response.{whole.status}"
    assert happened[-1].response.output_text == whole.output_text
    assert whole.usage is not None
    assert happened[-1].response.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.thorough
def test_a_structured_response_is_parsed_by_the_client(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "input": QUESTION, "max_output_tokens": 400, "temperature": 0}
    at_once = client.responses.parse(**options, text_format=Pet)
    assert isinstance(at_once.output_parsed, Pet)
    with client.responses.stream(**options, text_format=Pet) as stream:
        assert stream.get_final_response().output_parsed == at_once.output_parsed


def test_a_tool_that_has_to_be_called_is_called_as_its_schema_says(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    call = only_call(choice)
    check_arguments(call.function.name, call.function.arguments)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 10


@pytest.mark.thorough
def test_a_streamed_call_adds_up_to_the_call_at_once(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": QUESTION, "tools": TOOLS, "seed": 5, "max_tokens": 400}
    options["tool_choice"] = {"type": "function", "function": {"name": "weather"}}
    whole = client.chat.completions.create(**options).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
    deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert deltas[0].id  # how many there are is the load's to say: what waits goes out together
    assert all(delta.index == 0 for delta in deltas)
    call = only_call(whole)
    functions = [delta.function for delta in deltas if delta.function is not None]
    assert [each.name for each in functions if each.name] == [call.function.name] == ["weather"]
    assert "".join(each.arguments or "" for each in functions) == call.function.arguments
    check_arguments("weather", call.function.arguments)
    assert chunks[-1].finish_reason == whole.finish_reason == "tool_calls"


def test_the_result_of_a_call_goes_back_and_is_answered(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "tools": TOOLS, "temperature": 0}
    first = client.chat.completions.create(
        **options, messages=QUESTION, tool_choice="required", parallel_tool_calls=False
    )
    call = only_call(first.choices[0])
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "A block holds 16 tokens."}
    second = client.chat.completions.create(
        **options, messages=[*QUESTION, first.choices[0].message, result], max_tokens=24
    )
    assert second.choices[0].message.content
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.total_tokens
    # What went before is the same tokens again.
    cached = second.usage.prompt_tokens_details
    assert cached is not None
    assert (cached.cached_tokens or 0) >= (first.usage.prompt_tokens // 16) * 16


@pytest.mark.thorough
def test_a_tool_that_nothing_asks_for_leaves_the_text_alone(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    free = client.chat.completions.create(**options, tools=TOOLS, tool_choice="auto")
    assert free.choices[0].message.content
    assert free.choices[0].message.tool_calls is None
    without = client.chat.completions.create(**options)
    unheard = client.chat.completions.create(**options, tools=TOOLS, tool_choice="none")
    assert unheard.choices[0].message.content == without.choices[0].message.content


@pytest.mark.thorough
def test_beside_tools_an_answer_without_calls_has_the_format_that_was_asked_for(
    client: OpenAI, model: str
) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        tools=TOOLS,
        response_format=wanted,
        max_tokens=400,
        parallel_tool_calls=False,
    )
    (choice,) = answer.choices
    if choice.message.tool_calls:
        call = only_call(choice).function
        check_arguments(call.name, call.arguments)
    else:
        assert set(json.loads(choice.message.content or "")) == {"name", "old"}


@pytest.mark.thorough
def test_a_schema_that_no_grammar_expresses_is_named(client: OpenAI, model: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"if": {}, "then": {}}}}
    with pytest.raises(openai.BadRequestError, match="uses keywords that are not supported") as refused:
        client.chat.completions.create(model=model, messages=QUESTION, tools=[*TOOLS, tool])
    assert refused.value.param == f"tools[{len(TOOLS)}].function.parameters"


@pytest.mark.thorough
def test_a_response_calls_a_tool_and_goes_on_with_its_result(client: OpenAI, model: str) -> None:
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    options: Any = {"model": model, "tools": tools, "parallel_tool_calls": False, "extra_body": {"seed": 5}}
    happened: list[Any] = list(
        client.responses.create(**options, input=QUESTION, tool_choice="required", stream=True)
    )
    told = [event.delta for event in happened if event.type == "response.function_call_arguments.delta"]
    first = happened[-1].response
    (call,) = first.output
    assert (call.type, "".join(told)) == ("function_call", call.arguments)
    check_arguments(call.name, call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "A block holds 16 tokens."}
    again: Any = [*QUESTION, call.model_dump(exclude_none=True), result]
    second = client.responses.create(**options, input=again, max_output_tokens=24)
    assert second.output
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


def test_choices_and_logprobs_come_as_the_client_knows_them(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, n=2, seed=3, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        spelled = b"".join(bytes(token.bytes or b"") for token in choice.logprobs.content)
        assert (choice.message.content or "") in spelled.decode(errors="replace")
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)


def test_a_text_with_an_echo_begins_with_its_prompt(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=[STORY, "The dog"], echo=True, max_tokens=4)
    assert answer.choices[0].text.startswith(STORY)
    assert answer.choices[1].text.startswith("The dog")


def test_a_prompt_is_scored_as_harnesses_ask_for_it(client: OpenAI, model: str) -> None:
    options: Any = {"model": model, "echo": True, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    by_text = client.completions.create(prompt=STORY, **options).choices[0]
    assert by_text.logprobs is not None
    tokens, told = by_text.logprobs.tokens or [], by_text.logprobs.token_logprobs or []
    assert by_text.text.startswith(STORY)
    assert "".join(tokens).startswith(STORY)
    assert told[0] is None
    assert len(tokens) == len(told) > 2
    assert all(logprob <= 0 for logprob in told[1:])
    (answer,) = client.completions.create(model=model, prompt=[5, 6, 7], echo=True, max_tokens=1).choices
    assert answer.text


def test_errors_are_raised_as_the_client_knows_them(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(
            model=model, messages=QUESTION, extra_body={"penstock": {"deadline_ms": 1}}
        )
    assert late.value.status_code in (429, 504)  # what cannot be in time is shed or expires


def test_embeddings_are_those_of_the_retriever(client: OpenAI) -> None:
    (embedder,) = [one.id for one in client.models.list() if (one.model_extra or {})["embeds"]]
    answer = client.embeddings.create(model=embedder, input=["a dog", "a puppy", "tax law"])
    dog, puppy, law = (row.embedding for row in answer.data)

    def likeness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert likeness(dog, dog) == pytest.approx(1.0, abs=1e-3)
    assert likeness(dog, puppy) > likeness(dog, law)
    assert answer.usage.prompt_tokens > 0


async def test_closing_a_stream_frees_what_it_held(stack: Stack, model: str) -> None:
    async with AsyncOpenAI(base_url=f"http://{stack.http}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model=model,
            prompt=STORY,
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in stream:
            break
        await stream.close()
        await stack.until_idle()


async def test_curl_gets_whole_answers_and_streams(stack: Stack) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")

    async def ask(body: dict[str, Any]) -> str:
        command = [curl, "-sS", "--fail-with-body", f"http://{stack.http}/v1/completions"]
        process = await asyncio.create_subprocess_exec(
            *command, "--json", json.dumps(body), stdout=asyncio.subprocess.PIPE
        )
        ended = await ended_program(process)
        assert ended.code == 0, ended.out
        return ended.out

    body: dict[str, Any] = {"prompt": STORY, "max_tokens": 8, "seed": 7}
    whole = json.loads(await ask(body))["choices"][0]["text"]
    lines = [line for line in (await ask({**body, "stream": True})).splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


async def test_the_openai_clients_of_the_page_run_as_printed(stack: Stack) -> None:
    page = (REPOSITORY / "services" / "gateway" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    programs = [block for block in blocks if "openai" in block]
    printed = (
        r"\w+[\s\S]*\n\[\d+ prompt tokens, \d+ more\]",
        r"weather \{'city': '(Oslo|Rome)'\}\n[\s\S]*\w",
    )
    for program, pattern in zip(programs, printed, strict=True):
        code, output = await run("-c", program.replace("127.0.0.1:8000", stack.http))
        assert code == 0, output
        assert re.search(pattern, output)


async def test_the_search_that_the_page_prints_finds_what_it_asks_for(stack: Stack) -> None:
    page = (REPOSITORY / "services" / "retriever" / "README.md").read_text()
    (asked,) = re.findall(r"curl http://127\.0\.0\.1:8000(/v1/vector_stores/\S+) --json '(.*)'", page)
    async with http_client(stack.http) as client:
        reply = await call(client, asked[0], json.loads(asked[1]))
    assert reply.status == 200, reply.body
    texts = [found["content"][0]["text"] for found in reply.body["data"]]
    assert len(texts) == json.loads(asked[1])["max_num_results"]
    assert "16 tokens" in "\n".join(texts)


OWN_CLIENT_PAGE, AGENTS_PAGE = "protos/python/README.md", "services/gateway/AGENTS.md"
OWN_CLIENT_PROGRAMS = {
    "Shed as error": (OWN_CLIENT_PAGE, r"[\s\S]*\w[\s\S]*\n\[\d+ tokens\]\n"),
    "AsyncClient(": (OWN_CLIENT_PAGE, r"[\s\S]*\w"),
    "client.generate(turns": (OWN_CLIENT_PAGE, r'weather \{"city": "(Oslo|Rome)"\}\n[\s\S]*\w'),
    "client.rerank(": (OWN_CLIENT_PAGE, r"(\S*README\.md [\s\S]+\n){3}[\d.]+ A block holds 16 tokens\.\n"),
    "AgentHints(": (AGENTS_PAGE, r"[\s\S]*\w"),
}
"""The programs of its pages, by what they have, each with its page and what it prints."""


@pytest.mark.parametrize("mark", OWN_CLIENT_PROGRAMS)
async def test_our_own_client_does_what_its_page_says(stack: Stack, mark: str) -> None:
    folder = REPOSITORY / "protos" / "python"
    page, pattern = (REPOSITORY / OWN_CLIENT_PROGRAMS[mark][0]).read_text(), OWN_CLIENT_PROGRAMS[mark][1]
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if mark in block]
    path = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    code, output = await run("-c", path + program.replace("127.0.0.1:50051", stack.grpc))
    assert code == 0, output
    assert re.match(pattern, output), output
