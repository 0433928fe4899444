"""The gRPC edge: one `Generate` call is one session, written to its client as it comes."""

from __future__ import annotations

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.client_cancels import ClientCancels
from services.gateway.config import GatewayConfig
from services.gateway.edge_status import abort_call
from services.gateway.edge_text import TextEdge, call_authorization
from services.gateway.front_door import FrontDoor, note_refusal
from services.gateway.outcome import Outcome
from services.gateway.request_timeline import RequestTimeline
from services.gateway.response_relay import relay_response
from services.gateway.text_asks import TextAsks
from shared.errors import PenstockError

Call = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent]


class InferenceEdge(TextEdge):
    def __init__(
        self,
        front_door: FrontDoor,
        client_cancels: ClientCancels,
        text_asks: TextAsks,
        config: GatewayConfig,
    ) -> None:
        super().__init__(text_asks, front_door, config)
        self._client_cancels = client_cancels

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> None:  # noqa: N802 - gRPC's name
        arrived = RequestTimeline(request.client_sent_unix_us)
        try:
            key = self._front_door.identify(call_authorization(call))
            session, budget = self._front_door.open_session(
                key, request, call_remaining_s=call.time_remaining()
            )
        except PenstockError as error:
            outcome = await _refuse(arrived, error, call)
        else:
            call.add_done_callback(lambda _: session.on_call_ended())  # type: ignore[arg-type]  # the stub is no callable
            outcome = await relay_response(session, budget, _CallWriter(call))
        if outcome.error is not None:
            await abort_call(call, outcome.error)

    async def Cancel(  # noqa: N802 - gRPC's name
        self, request: pb.CancelRequest, call: grpc.aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        try:
            key = self._front_door.identify(call_authorization(call))
            found = await self._client_cancels.cancel_request(request.request_id, tenant=key.tenant)
        except PenstockError as error:
            await abort_call(call, error)
        return pb.CancelResponse(found=found)


class _CallWriter:
    """Writes the events of the contract."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        await self._call.write(pb.GenerateEvent(prompt=prompt))

    async def write_delta(self, delta: pb.TextDelta) -> None:
        await self._call.write(pb.GenerateEvent(text=delta))

    async def write_end(self, end: pb.Terminal) -> None:
        await self._call.write(pb.GenerateEvent(end=end))


async def _refuse(timeline: RequestTimeline, error: PenstockError, call: Call) -> Outcome:
    """A request that never became a session ends in one terminal event too."""
    outcome = note_refusal(error)
    timeline.mark_phase("admit")
    await call.write(pb.GenerateEvent(end=outcome.terminal_event(pb.Usage(), timeline.to_event())))
    return outcome
