"""What people do with LangChain's OpenAI classes; see told.py."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from langchain_core.messages import HumanMessage  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings  # type: ignore[import-not-found]
from pydantic import BaseModel, Field
from told import QUESTION, STORY, answer


@tool  # type: ignore[untyped-decorator]  # LangChain is not in the environment of the type checker
def weather(city: Literal["Oslo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city."""
    return f"{days} days of sun in {city}"


class Pet(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    old: bool


class LangChain:
    def __init__(self, url: str, model: str, embedder: str) -> None:
        self._known: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
        options: dict[str, Any] = {**self._known, "model": model, "seed": 7, "temperature": 0.8}
        self._chat = ChatOpenAI(**options, max_tokens=24, stream_usage=True)
        self._long_chat = ChatOpenAI(**options, max_tokens=400)
        self._responses = ChatOpenAI(
            **self._known, model=model, temperature=0, max_tokens=24, use_responses_api=True
        )
        self._text = OpenAI(**options, max_tokens=24)
        self._embedder = embedder

    def invoke(self) -> object:
        return _message(self._chat.invoke(QUESTION))

    def stream(self) -> object:
        chunks = list(self._chat.stream(QUESTION))
        return {**_message(sum(chunks[1:], chunks[0])), "chunks": len(chunks)}

    def stream_asynchronously(self) -> object:
        async def collect() -> list[Any]:
            return [chunk async for chunk in self._chat.astream(QUESTION)]

        chunks = asyncio.run(collect())
        return _message(sum(chunks[1:], chunks[0]))

    def batch(self) -> object:
        return [message.content for message in self._chat.batch([QUESTION, STORY, QUESTION])]

    def conversation(self) -> object:
        turns = [("system", "Be brief."), ("human", "Who?"), ("ai", "A dog."), ("human", QUESTION)]
        return _message(self._chat.invoke(turns))

    def structure(self) -> object:
        return self._long_chat.with_structured_output(Pet).invoke(QUESTION).model_dump()

    def call_tool(self) -> object:
        """It has to be called; every call's result goes back."""
        messages = [HumanMessage(QUESTION)]
        messages.append(self._long_chat.bind_tools([weather], tool_choice="any").invoke(messages))
        calls = messages[-1].tool_calls
        messages += [weather.invoke(call) for call in calls]
        said = self._chat.bind_tools([weather], tool_choice="none").invoke(messages)
        return {
            "calls": [{"name": call["name"], "arguments": call["args"]} for call in calls],
            "results": [message.content for message in messages[2:]],
            **_message(said),
        }

    def stream_tool_call(self) -> object:
        bound = self._long_chat.bind_tools([weather], tool_choice="weather")
        chunks = list(bound.stream(QUESTION))
        (wanted,) = sum(chunks[1:], chunks[0]).tool_calls
        pieces = [piece for chunk in chunks for piece in chunk.tool_call_chunks]
        return {"name": wanted["name"], "arguments": wanted["args"], "pieces": len(pieces)}

    def structure_by_a_call(self) -> object:
        structured = self._long_chat.with_structured_output(Pet, method="function_calling")
        return structured.invoke(QUESTION).model_dump()

    def respond(self) -> object:
        message = self._responses.invoke(QUESTION)
        return {"content": message.text, "usage": message.usage_metadata}

    def stream_response(self) -> object:
        chunks = list(self._responses.stream(QUESTION))
        whole = sum(chunks[1:], chunks[0])
        return {"content": whole.text, "usage": whole.usage_metadata}

    def complete(self) -> object:
        return self._text.invoke(STORY)

    def stream_text(self) -> object:
        return "".join(self._text.stream(STORY))

    def embed(self) -> object:
        """Texts go out as they are: by default LangChain cuts them with a tokenizer of OpenAI's models."""
        embeddings = OpenAIEmbeddings(**self._known, model=self._embedder, check_embedding_ctx_length=False)
        return [*embeddings.embed_documents(["a dog", "tax law"]), embeddings.embed_query("a dog")]


def _message(message: Any) -> dict[str, Any]:
    return {
        "content": message.content,
        "usage": message.usage_metadata,
        "finish_reason": message.response_metadata["finish_reason"],
    }


if __name__ == "__main__":
    answer(LangChain)
