"""The answer to `/v1/responses`: one session, told at once or as a stream of named and numbered events."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.error_object import error_object
from services.gateway.http.event_stream import EventStream
from services.gateway.http.penstock_part import penstock_part
from services.gateway.http.response_object import (
    ONLY_ITEM,
    ONLY_PART,
    ResponseObject,
    output_text,
    status_of,
)
from services.gateway.http.responses import AskedResponse
from services.gateway.http.token_text import Spell, TokenText, describe_tokens, spell_logprobs
from shared.errors import PenstockError


class ResponseAnswer:
    """A `CallAnswer`, and the writer of its one session."""

    def __init__(self, request_id: str, asked: AskedResponse, events: EventStream, spell: Spell) -> None:
        self.prompt = pb.PromptInfo()
        self.end = pb.Terminal()
        self._asked = asked
        self._object = ResponseObject(request_id, asked, int(time.time()))
        self._events = events
        self._spell = spell if asked.sampling.HasField("logprobs") else None
        self._texts: list[str] = []
        self._tokens: list[TokenText] = []
        self._sent = 0

    @property
    def writers(self) -> Sequence[ResponseAnswer]:
        return [self]

    # ---- what the session says -------------------------------------------------------------------------

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        self.prompt = prompt

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        """No response asks for them."""

    async def write_delta(self, delta: pb.TextDelta) -> None:
        tokens: Sequence[TokenText] = ()
        if self._spell is not None:
            tokens = await spell_logprobs(self._spell, self.prompt.model, delta.logprobs)
        self._texts.append(delta.text)
        self._tokens.extend(tokens)
        if not self._asked.stream:
            return
        events = self._first_events()
        if delta.text or tokens:
            logprobs = describe_tokens(tokens)
            events.append(self._part_event("output_text.delta", delta=delta.text, logprobs=logprobs))
        await self._events.send(*events)

    async def write_end(self, end: pb.Terminal) -> None:
        self.end = end
        if self._asked.stream and end.outcome == pb.OUTCOME_FINISHED:
            await self._events.send(*self._first_events(), *self._last_events())

    # ---- the answer ------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        body = self._describe(status_of(self.end), usage=self.end.usage)
        return body | penstock_part(self._asked.options, [self])

    async def end_stream(self, failed: PenstockError | None) -> web.StreamResponse:
        """With the whole response once more; one that failed has what there is of it."""
        if failed is None:
            body = self.whole()
        else:
            described = error_object(failed, self._asked.field_names)[2]["error"]
            error = {"code": described["code"], "message": described["message"]}
            body = self._describe("failed", error=error, item_status="incomplete")
        return await self._events.finish(self._event(body["status"], response=body), mark=b"")

    def _describe(self, status: str, *, item_status: str = "", **more: Any) -> dict[str, Any]:
        message = self._object.message(item_status or status, [self._part()])
        return self._object.describe(status, self.prompt.model, [message], **more)

    def _part(self) -> dict[str, Any]:
        return output_text("".join(self._texts), self._tokens)

    # ---- events ----------------------------------------------------------------------------------------

    def _first_events(self) -> list[Mapping[str, Any]]:
        """Before the text; nothing when it has begun."""
        if self._sent:
            return []
        body = self._object.describe("in_progress", self.prompt.model)
        return [
            self._event("created", response=body),
            self._event("in_progress", response=body),
            self._item_event("added", self._object.message("in_progress", [])),
            self._part_event("content_part.added", part=output_text("", [])),
        ]

    def _last_events(self) -> list[Mapping[str, Any]]:
        part = self._part()
        return [
            self._part_event("output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._part_event("content_part.done", part=part),
            self._item_event("done", self._object.message(status_of(self.end), [part])),
        ]

    def _item_event(self, name: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._event(f"output_item.{name}", output_index=ONLY_ITEM, item=item)

    def _part_event(self, name: str, **fields: Any) -> Mapping[str, Any]:
        place = {"item_id": self._object.message_id, "output_index": ONLY_ITEM, "content_index": ONLY_PART}
        return self._event(name, **place, **fields)

    def _event(self, name: str, **fields: Any) -> Mapping[str, Any]:
        """To be sent in the order in which they are made, which numbers them."""
        number, self._sent = self._sent, self._sent + 1
        return {"type": f"response.{name}", "sequence_number": number, **fields}
