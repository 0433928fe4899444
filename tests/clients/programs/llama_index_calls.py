"""What people do with LlamaIndex's class for OpenAI's interface; see told.py."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from llama_index.core.llms import ChatMessage  # type: ignore[import-not-found]
from llama_index.core.tools import FunctionTool  # type: ignore[import-not-found]
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-not-found]
from pydantic import BaseModel, Field
from told import QUESTION, STORY, answer


class Forecast(BaseModel):
    city: Literal["Oslo", "Rome"]
    days: Literal[1, 2, 3]


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{days} days of sun in {city}"


TOOL = FunctionTool.from_defaults(weather, fn_schema=Forecast)
MESSAGES = [ChatMessage(role="user", content=QUESTION)]


class Pet(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    old: bool


class LlamaIndex:
    def __init__(self, url: str, model: str, embedder: str) -> None:  # noqa: ARG002 - as all programs
        options: dict[str, Any] = {
            "api_base": f"{url}/v1",
            "api_key": "none",
            "model": model,
            "context_window": 1024,
            "temperature": 0.8,
            "max_retries": 0,
            "additional_kwargs": {"seed": 7},
        }
        self._text = OpenAILike(**options, is_chat_model=False, max_tokens=24)
        self._chat = OpenAILike(**options, is_chat_model=True, max_tokens=24)
        self._structured = OpenAILike(
            **options,
            is_chat_model=True,
            is_function_calling_model=True,
            should_use_structured_outputs=True,
            max_tokens=400,
        )

    def complete(self) -> object:
        return self._text.complete(STORY).text

    def stream_complete(self) -> object:
        return "".join(chunk.delta for chunk in self._text.stream_complete(STORY))

    def chat(self) -> object:
        found = self._chat.chat(MESSAGES)
        return {"content": found.message.content, "usage": found.raw.usage.model_dump()}

    def stream_chat(self) -> object:
        return "".join(chunk.delta for chunk in self._chat.stream_chat(MESSAGES))

    def chat_asynchronously(self) -> object:
        return asyncio.run(self._chat.achat(MESSAGES)).message.content

    def call_tool(self) -> object:
        found = self._structured.chat_with_tools([TOOL], QUESTION, tool_required=True)
        (call,) = self._structured.get_tool_calls_from_response(found)
        return {"name": call.tool_name, "arguments": call.tool_kwargs}

    def structure(self) -> object:
        return self._structured.as_structured_llm(Pet).complete(QUESTION).raw.model_dump()


if __name__ == "__main__":
    answer(LlamaIndex)
