"""The gRPC edge: one `Generate` call is one session, written to its client as it comes."""

from __future__ import annotations

import asyncio
import secrets
import time

import grpc.aio
import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.budget import Budget
from services.gateway.client_cancels import ClientCancels
from services.gateway.config import GatewayConfig
from services.gateway.edge_status import abort_call
from services.gateway.edge_text import TextEdge, call_authorization
from services.gateway.key_gate import KeyGate
from services.gateway.outcome import Outcome
from services.gateway.report import count_outcome
from services.gateway.request import validate_request
from services.gateway.request_timeline import RequestTimeline
from services.gateway.session import Session
from services.gateway.session_registry import SessionRegistry
from services.gateway.text_asks import TextAsks
from shared.errors import Cancelled, PenstockError
from shared.telemetry import metrics

log = structlog.get_logger()

SEED_BITS = 63
WRITE_GRACE_S = 5.0
"""How long after the total deadline a client that does not read may keep its call open."""

Call = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent]


class InferenceEdge(TextEdge):
    def __init__(
        self,
        registry: SessionRegistry,
        client_cancels: ClientCancels,
        text_asks: TextAsks,
        key_gate: KeyGate,
        config: GatewayConfig,
    ) -> None:
        super().__init__(text_asks, key_gate, config)
        self._registry = registry
        self._client_cancels = client_cancels

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> None:  # noqa: N802 - gRPC's name
        arrived = RequestTimeline(request.client_sent_unix_us)
        try:
            session, budget = self._open_session(request, call)
        except PenstockError as error:
            outcome = await _refuse(arrived, error, call)
        else:
            call.add_done_callback(lambda _: session.on_call_ended())  # type: ignore[arg-type]  # the stub is no callable
            try:
                async with asyncio.timeout(budget.total.remaining_s() + WRITE_GRACE_S):
                    outcome = await _write_response(session, call)
            except TimeoutError:
                outcome = Outcome.of(Cancelled("the client did not read its answer: read faster"))
            finally:
                # When the call was dropped this is what cancels the request; after an end it does nothing.
                session.cancel_request("the client ended the call")
        if outcome.error is not None:
            await abort_call(call, outcome.error)

    async def Cancel(  # noqa: N802 - gRPC's name
        self, request: pb.CancelRequest, call: grpc.aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        try:
            key = self._key_gate.identify(call_authorization(call))
            found = await self._client_cancels.cancel_request(request.request_id, tenant=key.tenant)
        except PenstockError as error:
            await abort_call(call, error)
        return pb.CancelResponse(found=found)

    def _open_session(self, request: pb.GenerateRequest, call: Call) -> tuple[Session, Budget]:
        key = self._key_gate.identify(call_authorization(call))
        valid = validate_request(request, drawn_seed=secrets.randbits(SEED_BITS), tenant=key.tenant)
        budget = Budget.of(valid, self._config, call.time_remaining())
        allowance = self._key_gate.admit(key, valid)
        try:
            return self._registry.open_session(valid, budget, allowance), budget
        except BaseException:
            allowance.undo()
            raise


async def _write_response(session: Session, call: Call) -> Outcome:
    """Write what comes until the end; what queues while the client is slow goes out as one event."""
    last_s = 0.0
    while True:
        part = await session.response.take_response()
        if part.prompt is not None:
            await call.write(pb.GenerateEvent(prompt=part.prompt))
        if part.delta is not None:
            await call.write(pb.GenerateEvent(text=part.delta))
            if part.delta.token_ids:
                session.timeline.mark_delivered()
                last_s = _observe_gap(last_s)
        if part.end is not None:
            terminal = session.terminal_event(part.end)
            await call.write(pb.GenerateEvent(end=terminal))
            return part.end


async def _refuse(timeline: RequestTimeline, error: PenstockError, call: Call) -> Outcome:
    """A request that never became a session ends in one terminal event too."""
    error.hop = error.hop or "gateway"
    outcome = Outcome.of(error)
    timeline.mark_phase("admit")
    count_outcome(outcome)
    log.info("request_refused", outcome=outcome.word, error=str(error))
    await call.write(pb.GenerateEvent(end=outcome.terminal_event(pb.Usage(), timeline.to_event())))
    return outcome


def _observe_gap(last_s: float) -> float:
    """Note the time since the last delivery of tokens (0: none yet); the time of this one."""
    now_s = time.perf_counter()
    if last_s:
        metrics.INTER_TOKEN_LATENCY.observe(now_s - last_s)
    return now_s
