"""The answer to one call for completions: its choices beside each other, as one body or a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from services.gateway.http.completions.choice import Choice
from services.gateway.http.completions.completion import AnswerShape, AskedCompletion
from services.gateway.http.completions.error_object import error_object
from services.gateway.http.completions.event_stream import EventPlace, EventStream, TextFrame
from services.gateway.http.completions.token_text import FetchTokenBytes
from services.gateway.http.fields.penstock_part import penstock_part
from shared.errors import PenstockError
from shared.seams.clock import SYSTEM_CLOCK


class Answer:
    """`request_id` is that of the first choice."""

    def __init__(
        self,
        shape: AnswerShape,
        request_id: str,
        completion: AskedCompletion,
        events: EventStream,
        fetch_bytes: FetchTokenBytes,
    ) -> None:
        self._id = shape.id_prefix + request_id
        self._shape = shape
        self._completion = completion
        self._events = events
        self._created = SYSTEM_CLOCK.unix_us() // 1_000_000
        self._frames: dict[int, TextFrame] = {}
        """The frames that wait, by choice."""
        make = partial(
            Choice,
            shape=shape,
            sender=self if completion.stream else None,
            fetch_bytes=fetch_bytes,
            logprobs=completion.choices.prompts[0].sampling.HasField("logprobs"),
        )
        self.writers = [make(index, echo) for index, echo in enumerate(completion.echoes)]
        if completion.options.resumed is not None:
            self.writers[0].go_on(completion.options.resumed)

    def whole(self) -> dict[str, Any]:
        body = self._head(self._shape.object_name, self._model)
        body |= {"choices": [choice.whole() for choice in self.writers], "usage": self._usage()}
        return body | penstock_part(self._completion.options, self.writers)

    async def send_chunks(self, model: str, chunks: Sequence[Mapping[str, Any]], last_id: str = "") -> None:
        await self._events.send(*(self._chunk(model, chunk) for chunk in chunks), last_id=last_id)

    async def send_text(self, model: str, index: int, text: str, event_id: str = "") -> None:
        if self._completion.stream_usage.each:
            await self.send_chunks(model, [self._shape.text_chunk(index, text, None, 0)], event_id)
        else:
            await self._events.send_text(self._frame(model, index), text, event_id)

    def put_text(self, model: str, index: int, text: str, event_id: str = "") -> bool:
        if self._completion.stream_usage.each:
            return False
        return self._events.put_text(self._frame(model, index), text, event_id)

    def text_place(self, model: str, index: int) -> EventPlace | None:
        if self._completion.stream_usage.each or len(self.writers) > 1:
            return None
        return self._events.place(self._frame(model, index))

    def _frame(self, model: str, index: int) -> TextFrame:
        """Return the chunk of a choice around any text."""
        frame = self._frames.get(index)
        if frame is None:
            frame = TextFrame(lambda text: self._chunk(model, self._shape.text_chunk(index, text, None, 0)))
            self._frames[index] = frame
        return frame

    async def end_stream(self, failed: PenstockError | None) -> web.StreamResponse:
        last = self._last_chunk() if failed is None else error_object(failed)[2]
        return await self._events.finish(last)

    def _chunk(self, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        body = self._head(self._shape.chunk_object_name, model)
        body["choices"] = [choice]
        wanted = self._completion.stream_usage
        if wanted.last:
            body["usage"] = self._usage_so_far(self.writers[choice["index"]]) if wanted.each else None
        return body

    def _last_chunk(self) -> dict[str, Any] | None:
        """Return the chunk with what is known at the end, or None where nothing of it was asked for."""
        body = self._head(self._shape.chunk_object_name, self._model)
        body["choices"] = []
        extra: dict[str, Any] = {"usage": self._usage()} if self._completion.stream_usage.last else {}
        extra |= penstock_part(self._completion.options, self.writers)
        return body | extra if extra else None

    def _head(self, name: str, model: str) -> dict[str, Any]:
        return {"id": self._id, "object": name, "created": self._created, "model": model}

    @property
    def _model(self) -> str:
        return self.writers[0].prompt.model

    def _usage_so_far(self, choice: Choice) -> dict[str, Any]:
        return _counts(choice.prompt.prompt_tokens, choice.told_tokens)

    def _usage(self) -> dict[str, Any]:
        """A prompt counts once, however many choices it has."""
        prompts = [choice.end.usage for choice in self.writers[:: self._completion.choices.n]]
        usages = [choice.end.usage for choice in self.writers]
        counts = _counts(
            sum(usage.prompt_tokens for usage in prompts), sum(usage.completion_tokens for usage in usages)
        )
        cached_tokens = sum(usage.cached_tokens for usage in prompts)
        counts |= {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
        if reasoning_tokens := sum(usage.reasoning_tokens for usage in usages):
            counts |= {"completion_tokens_details": {"reasoning_tokens": reasoning_tokens}}
        return counts


def _counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
