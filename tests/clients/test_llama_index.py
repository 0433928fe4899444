"""LlamaIndex's class for OpenAI's interface, unchanged, against a whole stack."""

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
    return partial(ClientEnvironment("llama_index").call, "llama_index_calls.py", served)


@pytest.fixture
def text(served: Served) -> str:
    whole = served.ask("/v1/completions", {**DRAW, "prompt": STORY})
    return str(whole["choices"][0]["text"])


@pytest.fixture
def chat(served: Served) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    return served.ask("/v1/chat/completions", {**DRAW, "messages": messages})


async def test_a_text_is_completed(call: Call, text: str) -> None:
    assert await call("complete") == text


async def test_a_completion_is_streamed(call: Call, text: str) -> None:
    assert await call("stream_complete") == text


async def test_a_chat_is_answered_with_its_usage(call: Call, chat: Any) -> None:
    found = await call("chat")
    assert found["content"] == chat["choices"][0]["message"]["content"]
    assert found["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


async def test_a_chat_is_streamed(call: Call, chat: Any) -> None:
    assert await call("stream_chat") == chat["choices"][0]["message"]["content"]


async def test_a_chat_is_answered_asynchronously(call: Call, chat: Any) -> None:
    assert await call("chat_asynchronously") == chat["choices"][0]["message"]["content"]


async def test_structured_output_is_an_object_of_its_class(call: Call) -> None:
    pet = await call("structure")
    assert set(pet) == {"name", "old"}
    assert isinstance(pet["old"], bool)


async def test_a_tool_is_called_as_its_schema_says(call: Call) -> None:
    found = await call("call_tool")
    assert found["name"] == "weather"
    assert found["arguments"]["city"] in ("Oslo", "Rome")
    assert found["arguments"]["days"] in (1, 2, 3)
