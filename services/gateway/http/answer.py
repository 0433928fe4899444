"""The answer to one call for completions: its choices beside each other, as one body or a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.choice import Choice
from services.gateway.http.completion import AnswerShape, AskedCompletion
from services.gateway.http.event_stream import EventStream


class Answer:
    """`request_id` is that of the first choice."""

    def __init__(self, request_id: str, shape: AnswerShape, completion: AskedCompletion) -> None:
        self.id = shape.id_prefix + request_id
        self._shape = shape
        self._completion = completion
        self._created = int(time.time())

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        body = self._head(self._shape.object_name, choices[0].prompt.model)
        body |= {"choices": [choice.whole() for choice in choices], "usage": self._usage(choices)}
        return body | self._penstock(choices)

    def chunk(self, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        body = self._head(self._shape.chunk_object_name, model)
        body["choices"] = [choice]
        if self._completion.include_usage:
            body["usage"] = None
        return body

    def last_chunk(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        """With what is known at the end; None where nothing of it was asked for."""
        body = self._head(self._shape.chunk_object_name, choices[0].prompt.model)
        body["choices"] = []
        extra: dict[str, Any] = {"usage": self._usage(choices)} if self._completion.include_usage else {}
        extra |= self._penstock(choices)
        return body | extra if extra else None

    def _head(self, name: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self._created, "model": model}

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """A prompt counts once, however many choices it has."""
        prompts = [choice.end.usage for choice in choices[:: self._completion.n]]
        usages = [choice.end.usage for choice in choices]
        prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
        completion_tokens = sum(usage.completion_tokens for usage in usages)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        }

    def _penstock(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """What OpenAI has no place for, where it was asked for: each choice is a request of its own."""
        options = self._completion.options
        if not (options.timeline or "retrieval" in options.fields):
            return {}
        return {"penstock": {"requests": [_request(choice, options.timeline) for choice in choices]}}


class ChunkStream:
    """A `ChunkSender` on a stream of events."""

    def __init__(self, events: EventStream, answer: Answer) -> None:
        self._events = events
        self._answer = answer

    async def send_chunks(self, model: str, chunks: Sequence[Mapping[str, Any]]) -> None:
        await self._events.send(*(self._answer.chunk(model, chunk) for chunk in chunks))


def _request(choice: Choice, timeline: bool) -> dict[str, Any]:
    prompt, end = choice.prompt, choice.end
    described: dict[str, Any] = {
        "index": choice.index,
        "request_id": prompt.request_id,
        "seed": prompt.seed,
        "degraded": prompt.degraded,
        "passages": [_plain(passage) for passage in prompt.passages],
        "usage": _plain(end.usage),
    }
    if timeline:
        described["timeline"] = {
            "ttft_us": end.timeline.ttft_us,
            "total_us": end.timeline.total_us,
            "phases": [
                {"name": phase.name, "start_us": phase.start_us, "duration_us": phase.duration_us}
                for phase in end.timeline.phases
            ],
        }
    return described


def _plain(message: pb.RetrievedPassage | pb.Usage) -> dict[str, Any]:
    """All fields, by the contract's names."""
    plain: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return plain
