"""The gRPC edge: one `Generate` call is one session, written to its client as it comes."""

from __future__ import annotations

import asyncio
import secrets
import time

import grpc
import grpc.aio
import structlog

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.budget import Budget
from services.gateway.config import GatewayConfig
from services.gateway.outcome import Outcome
from services.gateway.recorder import Recorder
from services.gateway.request import validate
from services.gateway.session import Session
from services.gateway.sessions import Sessions
from shared.errors import Cancelled, PenstockError
from shared.telemetry import metrics

log = structlog.get_logger()

SEED_BITS = 63
WRITE_GRACE_S = 5.0
"""How long after the total deadline a client that does not read may keep its call open."""
MAX_STATUS_CHARS = 400
"""Of the message in the status of a call; the terminal event has all of it."""

Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent]


class InferenceEdge(rpc.InferenceServicer):
    def __init__(self, sessions: Sessions, config: GatewayConfig) -> None:
        self._sessions = sessions
        self._config = config

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802 - gRPC's name
        try:
            session, budget = self._open(request, context)
        except PenstockError as error:
            outcome = await _refuse(request, error, context)
        else:
            context.add_done_callback(lambda _: session.call_over())  # type: ignore[arg-type]  # the stub is no callable
            try:
                async with asyncio.timeout(budget.total.remaining_s() + WRITE_GRACE_S):
                    outcome = await _relay(session, context)
            except TimeoutError:
                outcome = Outcome.of(Cancelled("the client did not read its answer: read faster"))
            finally:
                # When the call was dropped this is what cancels the request; after an end it does nothing.
                session.cancel("the client ended the call")
        if outcome.error is not None:
            await context.abort(grpc.StatusCode[outcome.status], str(outcome.error)[:MAX_STATUS_CHARS])

    def _open(self, request: pb.GenerateRequest, context: Context) -> tuple[Session, Budget]:
        valid = validate(request, drawn_seed=secrets.randbits(SEED_BITS))
        budget = Budget.of(valid, self._config, context.time_remaining())
        return self._sessions.open(valid, budget), budget


async def _relay(session: Session, context: Context) -> Outcome:
    """Write what comes until the end; what queues while the client is slow goes out as one event."""
    last_s = 0.0
    while True:
        written = await session.outlet.take()
        if written.prompt is not None:
            await context.write(pb.GenerateEvent(prompt=written.prompt))
        if written.delta is not None:
            await context.write(pb.GenerateEvent(text=written.delta))
            if written.delta.token_ids:
                session.recorder.delivered()
                last_s = _observe_gap(last_s)
        if written.end is not None:
            terminal = session.terminal(written.end)
            await context.write(pb.GenerateEvent(end=terminal))
            return written.end


async def _refuse(request: pb.GenerateRequest, error: PenstockError, context: Context) -> Outcome:
    """A request that never became a session ends in one terminal event too."""
    recorder = Recorder(request.client_sent_unix_us)
    error.hop = error.hop or "gateway"
    outcome = Outcome.of(error)
    recorder.mark("admit")
    metrics.REQUESTS.labels(outcome=outcome.word).inc()
    log.info("request_refused", outcome=outcome.word, error=str(error))
    await context.write(pb.GenerateEvent(end=outcome.terminal(pb.Usage(), recorder.event())))
    return outcome


def _observe_gap(last_s: float) -> float:
    """Note the time since the last delivery of tokens (0: none yet); the time of this one."""
    now_s = time.perf_counter()
    if last_s:
        metrics.INTER_TOKEN_LATENCY.observe(now_s - last_s)
    return now_s
