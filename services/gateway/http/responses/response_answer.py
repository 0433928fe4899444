"""The answer to `/v1/responses`: one session, told at once or as a stream of named and numbered events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.error_object import error_object
from services.gateway.http.completions.event_stream import EventStream
from services.gateway.http.completions.token_text import FetchTokenBytes, TokenText, texts_of_logprobs
from services.gateway.http.fields.penstock_part import penstock_part
from services.gateway.http.responses.response_items import Happened, ResponseItems
from services.gateway.http.responses.response_object import ResponseObject, status_of
from services.gateway.http.responses.responses import AskedResponse
from services.gateway.rows.row_sink import RowSink
from shared.errors import PenstockError
from shared.seams.clock import SYSTEM_CLOCK


class ResponseAnswer:
    """A `CallAnswer`, and the writer of its one session."""

    def __init__(
        self, request_id: str, asked: AskedResponse, events: EventStream, fetch_bytes: FetchTokenBytes
    ) -> None:
        self.prompt = pb.PromptInfo()
        self.end = pb.Terminal()
        self._asked = asked
        self._object = ResponseObject(request_id, asked, SYSTEM_CLOCK.unix_us() // 1_000_000)
        self._items = ResponseItems(request_id)
        self._events = events
        self._fetch_bytes = fetch_bytes if asked.sampling.HasField("logprobs") else None
        self._sent = 0

    @property
    def writers(self) -> Sequence[ResponseAnswer]:
        return [self]

    # ---- what the session says -------------------------------------------------------------------------

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        self.prompt = prompt
        self._items.cite(prompt.passages)

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        """No response asks for them."""

    def put_text(self, position: int, token_ids: tuple[int, ...], text: str) -> bool:  # noqa: ARG002 - a row's
        return False  # each row is several numbered events

    def row_sink(self) -> RowSink | None:
        return None

    async def write_text(self, event: pb.GenerateEvent) -> None:
        delta = event.text
        tokens: Sequence[TokenText] = ()
        if self._fetch_bytes is not None:
            tokens = await texts_of_logprobs(self._fetch_bytes, self.prompt.model, delta.logprobs)
        await self._write_events(self._items.add(delta, tokens))

    async def write_end(self, end: pb.Terminal) -> None:
        self.end = end
        if end.outcome == pb.OUTCOME_FINISHED:
            supported = self._items.support(end.citations)
            await self._write_events(supported + self._items.close(status_of(end)))

    # ---- the answer ------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        status = status_of(self.end)
        output = self._items.describe(status)
        body = self._object.describe(
            status, self.prompt.model, output, usage=self.end.usage, in_force=self._in_force
        )
        return body | penstock_part(self._asked.options, [self])

    async def end_stream(self, failed: PenstockError | None) -> web.StreamResponse:
        """End the stream with the whole response once more; one that failed has what there is of it."""
        body = self.whole() if failed is None else self._failed(failed)
        return await self._events.finish(self._event(body["status"], {"response": body}), mark=b"")

    def _failed(self, failed: PenstockError) -> dict[str, Any]:
        described = error_object(failed, self._asked.field_names)[2]["error"]
        error = {"code": described["code"], "message": described["message"]}
        output = self._items.describe("incomplete")
        return self._object.describe(
            "failed", self.prompt.model, output, error=error, in_force=self._in_force
        )

    @property
    def _in_force(self) -> pb.Sampling | None:
        return self.prompt.sampling if self.prompt.HasField("sampling") else None

    # ---- events ----------------------------------------------------------------------------------------

    async def _write_events(self, happened: Sequence[Happened]) -> None:
        if self._asked.stream:
            events = self._first_events() + [self._event(name, fields) for name, fields in happened]
            await self._events.send(*events)

    def _first_events(self) -> list[Mapping[str, Any]]:
        """Return the events that come before all others; none when they were sent."""
        if self._sent:
            return []
        body = self._object.describe("in_progress", self.prompt.model, in_force=self._in_force)
        return [self._event(name, {"response": body}) for name in ("created", "in_progress")]

    def _event(self, name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make the next event: events are numbered, and sent in the order in which they are made."""
        number, self._sent = self._sent, self._sent + 1
        return {"type": f"response.{name}", "sequence_number": number, **fields}
