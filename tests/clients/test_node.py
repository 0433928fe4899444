"""OpenAI's own client for Node, unchanged, against a whole stack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.clients.environments import INSTALL_TIMEOUT_S
from tests.clients.node_environment import NodeEnvironment
from tests.clients.programs.told import QUESTION, STORY
from tests.clients.served import Served
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S)
PACKAGE = "openai@6.49.0"
"""The last one for Node 20; newer ones want Node 22."""
DRAW = {"seed": 7, "temperature": 0.8, "max_tokens": 24}

Call = Callable[[str], Awaitable[Any]]


@pytest.fixture
def call(served: Served) -> Call:
    return partial(NodeEnvironment(PACKAGE).call, "openai_calls.cjs", served)


@pytest.fixture
def chat(served: Served) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    return served.ask("/v1/chat/completions", {**DRAW, "messages": messages})


async def test_a_chat_is_answered_with_its_usage(call: Call, chat: Any) -> None:
    found = await call("chat")
    assert found["content"] == chat["choices"][0]["message"]["content"]
    assert found["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


async def test_a_chat_is_streamed_with_its_usage(call: Call, chat: Any) -> None:
    found = await call("stream")
    assert found["content"] == chat["choices"][0]["message"]["content"]
    assert found["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


async def test_the_stream_helper_of_the_client_takes_what_comes(call: Call, chat: Any) -> None:
    assert (await call("runner"))["content"] == chat["choices"][0]["message"]["content"]


async def test_a_text_is_streamed(call: Call, served: Served) -> None:
    whole = served.ask("/v1/completions", {**DRAW, "prompt": STORY})
    assert await call("text") == whole["choices"][0]["text"]


async def test_structured_output_is_parsed_by_the_client(call: Call) -> None:
    pet = await call("structure")
    assert set(pet) == {"name", "old"}
    assert isinstance(pet["old"], bool)


async def test_a_tool_is_called_in_a_stream(call: Call) -> None:
    found = await call("tool")
    assert found["name"] == "weather"
    assert found["arguments"]["city"] in ("Oslo", "Rome")
    assert found["arguments"]["days"] in (1, 2, 3)


async def test_a_streamed_response_adds_up_to_the_one_at_once(call: Call) -> None:
    found = await call("respond")
    assert found["whole"]
    assert found["whole"] == found["streamed"] == found["collected"]


async def test_texts_are_embedded(call: Call) -> None:
    one, other = await call("embed")
    assert one == other
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-3)


async def test_an_error_is_the_class_that_the_client_has_for_it(call: Call) -> None:
    assert await call("wrong") == {"is": True, "status": 400, "param": "temperature"}


async def test_a_stream_that_is_left_frees_what_it_held(call: Call, stack: Stack) -> None:
    assert await call("leave") == "text_completion"
    await stack.until_idle()
