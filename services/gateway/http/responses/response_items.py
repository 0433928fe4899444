"""The output of a response as it grows: messages and calls, one after another; the last one may be open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.token_text import TokenText, describe_tokens
from services.gateway.http.responses.citations import Citations, FileCitation
from shared.text.passage_source import document_of

MESSAGE_ID_PREFIX = "msg_"
REASONING_ID_PREFIX = "rs_"
CALL_ID_PREFIX = "fc_"
ONLY_PART = 0
"""The index of the content of a message, and of what is thought."""

Happened = tuple[str, Mapping[str, Any]]
"""An event's name and fields."""


@dataclass(slots=True)
class MessageItem:
    id: str
    citations: Citations = field(default_factory=lambda: Citations({}))
    texts: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)

    @property
    def part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": "".join(self.texts),
            "annotations": list(self.citations.found),
            "logprobs": describe_tokens(self.tokens),
        }

    def describe(self, status: str) -> dict[str, Any]:
        return self._head(status) | {"content": [self.part]}

    def opening(self) -> list[Happened]:
        return [
            ("output_item.added", {"item": self._head("in_progress") | {"content": []}}),
            ("content_part.added", self._place() | {"part": MessageItem(self.id).part}),
        ]

    def grow(self, text: str, tokens: Sequence[TokenText]) -> list[Happened]:
        self.texts.append(text)
        self.tokens.extend(tokens)
        delta = {"delta": text, "logprobs": describe_tokens(tokens)}
        cited = self._told(self.citations.read(text))
        return [("output_text.delta", self._place() | delta), *cited]

    def support(self, sentences: Iterable[pb.Citation]) -> list[Happened]:
        return self._told(self.citations.support(sentences))

    def _told(self, new: Sequence[FileCitation]) -> list[Happened]:
        """Tell citations that are among those found by now, as the last ones."""
        first = len(self.citations.found) - len(new)
        return [
            ("output_text.annotation.added", self._place() | {"annotation_index": at, "annotation": citation})
            for at, citation in enumerate(new, start=first)
        ]

    def closing(self, status: str) -> list[Happened]:
        part = self.part
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            ("output_text.done", self._place() | done),
            ("content_part.done", self._place() | {"part": part}),
            ("output_item.done", {"item": self.describe(status)}),
        ]

    def _head(self, status: str) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "status": status}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": ONLY_PART}


@dataclass(slots=True)
class ReasoningItem:
    """The thinking of the model before it says or calls anything, told as it is: there is no summary."""

    id: str
    texts: list[str] = field(default_factory=list)

    def describe(self, status: str) -> dict[str, Any]:
        return self._head(status) | {"content": [self._part("".join(self.texts))]}

    def opening(self) -> list[Happened]:
        return [
            ("output_item.added", {"item": self._head("in_progress") | {"content": []}}),
            ("content_part.added", self._place() | {"part": self._part("")}),
        ]

    def grow(self, text: str) -> list[Happened]:
        self.texts.append(text)
        return [("reasoning_text.delta", self._place() | {"delta": text})]

    def closing(self, status: str) -> list[Happened]:
        text = "".join(self.texts)
        return [
            ("reasoning_text.done", self._place() | {"text": text}),
            ("content_part.done", self._place() | {"part": self._part(text)}),
            ("output_item.done", {"item": self.describe(status)}),
        ]

    def _head(self, status: str) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "status": status, "summary": []}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": ONLY_PART}


@dataclass(slots=True)
class CallItem:
    id: str
    call_id: str
    name: str
    arguments: str = ""

    def describe(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }

    def opening(self) -> list[Happened]:
        return [("output_item.added", {"item": self.describe("in_progress")})]

    def grow(self, arguments: str) -> list[Happened]:
        self.arguments += arguments
        return [("function_call_arguments.delta", {"item_id": self.id, "delta": arguments})]

    def closing(self, status: str) -> list[Happened]:
        done = {"item_id": self.id, "name": self.name, "arguments": self.arguments}
        return [
            ("function_call_arguments.done", done),
            ("output_item.done", {"item": self.describe(status)}),
        ]


class ResponseItems:
    """The items of a response; each change returns the events that tell it."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._items: list[ReasoningItem | MessageItem | CallItem] = []
        self._untold: list[TokenText] = []
        self._documents: dict[int, str] = {}

    def cite(self, passages: Iterable[pb.RetrievedPassage]) -> None:
        """Let the text from here on cite the passages that are in the prompt."""
        told = (passage for passage in passages if passage.prompt_place)
        self._documents = {passage.prompt_place: document_of(passage.source) for passage in told}

    def support(self, sentences: Iterable[pb.Citation]) -> list[Happened]:
        """Cite what passages support of the only message; of several, nobody has said of which."""
        match self._items:
            case [MessageItem() as message] | [ReasoningItem(), MessageItem() as message]:
                return self._placed(message.support(sentences))
        return []

    def describe(self, last_status: str) -> list[dict[str, Any]]:
        """Describe all items; all but the last have been completed."""
        statuses = ["completed"] * (len(self._items) - 1) + [last_status]
        return [item.describe(status) for item, status in zip(self._items, statuses, strict=False)]

    def add(self, delta: pb.TextDelta, tokens: Sequence[TokenText]) -> list[Happened]:
        """Tokens without text of their own go with the text that comes next, if any."""
        happened: list[Happened] = []
        if delta.reasoning:
            happened += self._add_reasoning(delta.reasoning)
        if delta.text:
            happened += self._add_text(delta.text, [*self._untold, *tokens])
            self._untold = []
        else:
            self._untold += tokens
        for call in delta.tool_calls:
            happened += self._add_call(call)
        return happened

    def close(self, status: str) -> list[Happened]:
        """Complete the last item; an answer without anything becomes a message without text."""
        happened: list[Happened] = [] if self._items else self._add_text("", self._untold)
        return happened + self._placed(self._items[-1].closing(status))

    def _add_text(self, text: str, tokens: Sequence[TokenText]) -> list[Happened]:
        happened: list[Happened] = []
        if not self._items or not isinstance(self._items[-1], MessageItem):
            happened += self._open(
                MessageItem(self._id_of_next(MESSAGE_ID_PREFIX), Citations(self._documents))
            )
        message = self._items[-1]
        assert isinstance(message, MessageItem)
        return happened + self._placed(message.grow(text, tokens))

    def _add_reasoning(self, text: str) -> list[Happened]:
        """Nothing is thought behind what is said."""
        happened: list[Happened] = []
        if not self._items:
            happened += self._open(ReasoningItem(self._id_of_next(REASONING_ID_PREFIX)))
        reasoning = self._items[0]
        assert isinstance(reasoning, ReasoningItem)
        return happened + self._placed(reasoning.grow(text))

    def _add_call(self, delta: pb.ToolCallDelta) -> list[Happened]:
        """Id and name are in the first delta of a call."""
        happened: list[Happened] = []
        if delta.id:
            happened += self._open(CallItem(self._id_of_next(CALL_ID_PREFIX), delta.id, delta.name))
        call = self._items[-1]
        assert isinstance(call, CallItem)
        return happened + (self._placed(call.grow(delta.arguments)) if delta.arguments else [])

    def _open(self, item: ReasoningItem | MessageItem | CallItem) -> list[Happened]:
        """Open an item after the end of the one before."""
        happened = self._placed(self._items[-1].closing("completed")) if self._items else []
        self._items.append(item)
        return happened + self._placed(item.opening())

    def _id_of_next(self, prefix: str) -> str:
        return f"{prefix}{self._request_id}" + (f"_{len(self._items)}" if self._items else "")

    def _placed(self, happened: Sequence[Happened]) -> list[Happened]:
        """Add the place of the last item to its events."""
        return [(name, {"output_index": len(self._items) - 1, **fields}) for name, fields in happened]
