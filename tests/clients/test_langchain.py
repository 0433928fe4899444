"""LangChain's OpenAI classes, unchanged, against a whole stack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.clients.environments import INSTALL_TIMEOUT_S, ClientEnvironment
from tests.clients.programs.told import QUESTION, STORY
from tests.clients.served import Served

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S)
DRAW = {"seed": 7, "temperature": 0.8, "max_tokens": 24}

Call = Callable[[str], Awaitable[Any]]


@pytest.fixture
def call(served: Served) -> Call:
    return partial(ClientEnvironment("langchain").call, "langchain_calls.py", served)


def asked(served: Served, content: str, **options: Any) -> Any:
    body = {**DRAW, **options, "messages": [{"role": "user", "content": content}]}
    return served.ask("/v1/chat/completions", body)


async def test_an_answer_comes_with_its_usage_and_why_it_ended(call: Call, served: Served) -> None:
    message, whole = await call("invoke"), asked(served, QUESTION)
    assert message["content"] == whole["choices"][0]["message"]["content"]
    assert message["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert message["usage"]["input_tokens"] == whole["usage"]["prompt_tokens"]
    assert message["usage"]["output_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_stream_adds_up_to_the_answer_and_its_usage(call: Call, served: Served) -> None:
    message, whole = await call("stream"), asked(served, QUESTION)
    assert message["chunks"] > 2
    assert message["content"] == whole["choices"][0]["message"]["content"]
    assert message["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_an_asynchronous_stream_has_the_same_text(call: Call, served: Served) -> None:
    message = await call("stream_asynchronously")
    assert message["content"] == asked(served, QUESTION)["choices"][0]["message"]["content"]


async def test_a_batch_is_answered_in_its_order(call: Call, served: Served) -> None:
    texts = {text: asked(served, text)["choices"][0]["message"]["content"] for text in (QUESTION, STORY)}
    assert await call("batch") == [texts[QUESTION], texts[STORY], texts[QUESTION]]


async def test_a_conversation_of_several_turns_is_read(call: Call, served: Served) -> None:
    message = await call("conversation")
    assert message["usage"]["input_tokens"] > asked(served, QUESTION)["usage"]["prompt_tokens"]


async def test_structured_output_is_an_object_of_its_class(call: Call) -> None:
    pet = await call("structure")
    assert set(pet) == {"name", "old"}
    assert isinstance(pet["old"], bool)


def check_call(found: Any) -> None:
    """As the schema of the program's tool says."""
    assert found["name"] == "weather"
    assert set(found["arguments"]) == {"city", "days"}
    assert found["arguments"]["city"] in ("Oslo", "Rome")
    assert found["arguments"]["days"] in (1, 2, 3)


async def test_a_tool_is_called_and_its_result_goes_back(call: Call, served: Served) -> None:
    found = await call("call_tool")
    assert found["calls"]
    for tool_call, result in zip(found["calls"], found["results"], strict=True):
        check_call(tool_call)
        assert tool_call["arguments"]["city"] in result
    assert found["usage"]["input_tokens"] > asked(served, QUESTION)["usage"]["prompt_tokens"]


async def test_a_call_of_a_tool_is_streamed(call: Call) -> None:
    found = await call("stream_tool_call")
    check_call(found)
    assert found["pieces"] > 2


async def test_structured_output_by_a_call_is_an_object_of_its_class(call: Call) -> None:
    pet = await call("structure_by_a_call")
    assert set(pet) == {"name", "old"}
    assert isinstance(pet["old"], bool)


@pytest.mark.parametrize("what", ["respond", "stream_response"])
async def test_responses_are_the_answer_of_a_chat(call: Call, served: Served, what: str) -> None:
    found, whole = await call(what), asked(served, QUESTION, temperature=0)
    assert found["content"] == whole["choices"][0]["message"]["content"]
    assert found["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_a_text_is_continued(call: Call, served: Served) -> None:
    whole = served.ask("/v1/completions", {**DRAW, "prompt": STORY})
    assert await call("complete") == whole["choices"][0]["text"]


async def test_a_text_is_streamed(call: Call, served: Served) -> None:
    whole = served.ask("/v1/completions", {**DRAW, "prompt": STORY})
    assert await call("stream_text") == whole["choices"][0]["text"]


async def test_texts_are_embedded(call: Call) -> None:
    dog, law, query = await call("embed")

    def likeness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert likeness(dog, query) == pytest.approx(1.0, abs=1e-3)
    assert likeness(dog, law) < 0.9
