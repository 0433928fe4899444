"""The gRPC edge: a `Generate` call is a session for each of its choices, written as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.passage_asks import PassageAsks
from services.gateway.asks.text_asks import TextAsks
from services.gateway.config import GatewayConfig
from services.gateway.grpc.edge_status import abort_call, set_status
from services.gateway.grpc.edge_text import TextEdge, call_authorization
from services.gateway.request.choices import Choices
from services.gateway.request.resume_token import ResumePoint
from services.gateway.rows.row_sink import CallSink, RowSink
from services.gateway.rows.row_terms import RowTerms
from services.gateway.scope.arrival import arrived_s
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.session.call_sessions import CallSessions
from services.gateway.session.client_cancels import ClientCancels
from services.gateway.session.ingress import Ingress, record_refusal
from shared.errors import Cancelled, PenstockError
from shared.files.api_key_file import ApiKey
from shared.http2.grpc_call import CallPlace

Call = grpc.aio.ServicerContext[Any, pb.GenerateEvent]


class InferenceEdge(TextEdge):
    def __init__(
        self,
        ingress: Ingress,
        client_cancels: ClientCancels,
        text_asks: TextAsks,
        passage_asks: PassageAsks,
        config: GatewayConfig,
    ) -> None:
        super().__init__(text_asks, passage_asks, ingress, config)
        self._client_cancels = client_cancels

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> None:  # noqa: N802 - gRPC's name
        await self._stream(request, call, None)

    async def Resume(self, request: pb.ResumeRequest, call: Call) -> None:  # noqa: N802 - gRPC's name
        await self._stream(request.request, call, ResumePoint(request.token, request.received_tokens))

    async def _stream(self, request: pb.GenerateRequest, call: Call, resumed: ResumePoint | None) -> None:
        arrived = RequestTimeline(request.client_sent_unix_us, began_s=arrived_s())
        failed: PenstockError | None
        key: ApiKey | None = None
        try:
            key = self._ingress.identify(call_authorization(call))
            choices = Choices.of(request)
            sessions = await CallSessions.open(
                self._ingress, key, choices, call_remaining_s=call.time_remaining(), resumed=resumed
            )
        except PenstockError as error:
            self._ingress.count_refused(key, error)
            await refuse_request(arrived, error, call, key)
            failed = error
        else:
            call.add_done_callback(lambda _: sessions.end_call())  # type: ignore[arg-type]  # the stub is no callable
            await call.send_initial_metadata(sessions.id_headers)
            turn = asyncio.Lock() if len(choices) > 1 else None
            failed = await sessions.relay_all(
                [_CallWriter(call, turn, index) for index in range(len(choices))]
            )
        if failed is not None:
            set_status(call, failed)

    async def Cancel(  # noqa: N802 - gRPC's name
        self, request: pb.CancelRequest, call: grpc.aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        try:
            key = self._ingress.identify(call_authorization(call))
            found = await self._client_cancels.cancel_request(request.request_id, tenant=key.tenant)
        except PenstockError as error:
            await abort_call(call, error)
        return pb.CancelResponse(found=found)


class _CallWriter:
    """Writes the events of the contract that are of one choice; several take turns, as gRPC wants it."""

    def __init__(self, call: Call, turn: asyncio.Lock | None, choice: int) -> None:
        self._call = call
        self._turn = turn
        self._choice = choice
        self._write_now: Callable[[pb.GenerateEvent], bool] | None = getattr(call, "write_now", None)
        """Writes without waiting and returns whether there is room for more; None: grpcio serves the call."""
        self._find_place: Callable[[], CallPlace] | None = getattr(call, "place", None)
        self._has_room = turn is None

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        prompt.choice = self._choice
        await self._write(pb.GenerateEvent(prompt=prompt))

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        told.choice = self._choice
        await self._write(pb.GenerateEvent(prompt_logprobs=told))

    def put_text(self, position: int, token_ids: tuple[int, ...], text: str) -> bool:
        if self._write_now is None or not self._has_room:
            return False
        event = pb.GenerateEvent()  # filled in place: a delta put into it would be copied
        delta = event.text
        delta.position = position
        delta.token_ids.extend(token_ids)
        delta.text = text
        try:
            self._has_room = self._write_now(event)
        except grpc.aio.InternalError:  # who waits to write hears of it
            return False
        return True

    def row_sink(self) -> RowSink | None:
        if self._find_place is None or not self._has_room:
            return None
        place = self._find_place()
        sink = CallSink(place.codec, place.stream, place.max_bytes, (self, "_has_room"), place.flush)
        return RowSink(sink, RowTerms(((self, "_has_room", True),)))

    async def write_text(self, event: pb.GenerateEvent) -> None:
        if self._choice:
            event.text.choice = self._choice
        await self._write(event)

    async def write_end(self, end: pb.Terminal) -> None:
        end.choice = self._choice
        await self._write(pb.GenerateEvent(end=end))

    async def _write(self, event: pb.GenerateEvent) -> None:
        """Raises Cancelled where gRPC has ended the call, by its deadline or its client: no fault of ours."""
        try:
            if self._turn is None:
                await self._call.write(event)
                self._has_room = True
                return
            async with self._turn:
                await self._call.write(event)
        except grpc.aio.InternalError as error:
            raise Cancelled("gRPC has ended the call", hop="gateway") from error


async def refuse_request(
    timeline: RequestTimeline, error: PenstockError, call: Call, key: ApiKey | None = None
) -> None:
    """A request that never became a session ends in one terminal event too."""
    outcome = record_refusal(error, key)
    timeline.mark_phase("admit")
    await call.write(pb.GenerateEvent(end=outcome.terminal_event(pb.Usage(), timeline.to_event())))
