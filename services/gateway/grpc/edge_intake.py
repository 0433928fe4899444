"""Take a gRPC call in: a bounded number of them, each for a bounded time, before anything is made of it.

What is too much ends at once, before its message is read, with a status that says when to come back. The
messages are read here too, so that one that cannot be read is its sender's error: the library would answer
it as UNKNOWN and log a traceback, for anybody, before any key is looked at.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.config import GatewayConfig
from services.gateway.grpc.edge import refuse_request
from services.gateway.grpc.edge_status import abort_call, set_status
from services.gateway.grpc.edge_text import AnyCall, call_authorization, client_metadata
from services.gateway.grpc.idle_connections import ConnectionCalls
from services.gateway.grpc.message_parts import check_parts
from services.gateway.scope.arrival import arrived_s, note_arrival
from services.gateway.scope.call_identity import REQUEST_ID, CallIdentity, note_identity
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.session.ingress import Ingress, record_refusal
from shared.errors import DeadlineExpired, InvalidRequest, Overloaded, PenstockError
from shared.telemetry import metrics
from shared.telemetry.trace_context import TRACEPARENT

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
KINDS = {
    f"/{INFERENCE}/{method.name}": method.input_type
    for method in pb.DESCRIPTOR.services_by_name["Inference"].methods
}
"""The message that each method of the contract takes."""
GENERATE = f"/{INFERENCE}/Generate"
RESUME = f"/{INFERENCE}/Resume"
STREAMS = (GENERATE, RESUME)
"""The methods whose calls are requests."""

GRPC_ENDPOINT = "grpc"
"""The name of Generate and Resume in metrics, beside those of the HTTP edge's pages."""

MAX_CALLS_BEFORE_ADMISSION = 256
"""The most calls beside those that may be live as requests and as other calls: their message is on its way,
or they are just being refused."""
MESSAGE_TIMEOUT_S = 30.0
"""The longest time for the message of a call, from its head on."""
ROOM_RETRY_MS = 200

Read = Callable[[bytes], Any]


def most_calls(config: GatewayConfig) -> int:
    """Return how many calls of clients may be open at once, of one connection as of all."""
    return config.max_sessions + config.max_text_calls + MAX_CALLS_BEFORE_ADMISSION


class CallIntake(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Stands before every handler, and takes the place of the library's own reading."""

    def __init__(self, ingress: Ingress, calls: ConnectionCalls, config: GatewayConfig) -> None:
        self._ingress = ingress
        self._calls = calls
        self._most = {True: most_calls(config), False: config.grpc_max_connections}
        """The most open calls of the contract, and of others: health, reflection."""
        self._open: Counter[bool] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the call, if there is one: the library answers where there is no method.

        Whatever the client is to send, it is taken as a stream: then it is read here, for as long as we like.
        """
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        serialize = handler.response_serializer
        if handler.unary_unary is not None:
            answer = self._one(method, handler.unary_unary, handler.request_deserializer)
            return grpc.stream_unary_rpc_method_handler(answer, response_serializer=serialize)
        if handler.unary_stream is not None:
            answer = self._one(method, handler.unary_stream, handler.request_deserializer)
            return grpc.stream_stream_rpc_method_handler(answer, response_serializer=serialize)
        answers = self._many(method, handler.stream_stream, handler.request_deserializer)
        return grpc.stream_stream_rpc_method_handler(answers, response_serializer=serialize)

    def _one(
        self, method: str, behaviour: Callable[[Any, AnyCall], Awaitable[Any]], read: Read
    ) -> Callable[[Any, AnyCall], Any]:
        async def answer(_messages: Any, call: AnyCall) -> Any:
            note_arrival()
            shown_id = _note_identity(method, call).shown_id(self._ingress.instance)
            call.set_trailing_metadata(((REQUEST_ID, shown_id),))
            try:
                with self._taken_in(method, call):
                    self._check(method, call)
                    message = _read(await _sent(call), read, KINDS.get(method))
                    return await behaviour(message, call)
            except PenstockError as error:
                await self._refuse(method, error, call)

        return answer

    def _many(
        self, method: str, behaviour: Callable[[Any, AnyCall], AsyncIterator[Any]], read: Read
    ) -> Callable[[AsyncIterator[bytes], AnyCall], AsyncIterator[Any]]:
        async def answer(raws: AsyncIterator[bytes], call: AnyCall) -> AsyncIterator[Any]:
            try:
                with self._taken_in(method, call):
                    messages = (_read(raw, read, None) async for raw in raws)
                    async for response in behaviour(messages, call):
                        yield response
            except PenstockError as error:
                await self._refuse(method, error, call)

        return answer

    @contextmanager
    def _taken_in(self, method: str, call: AnyCall) -> Iterator[None]:
        """Count a call while it is open. Raises Overloaded for one too many.

        Health and reflection need no key, so their calls keep no connection from making room.
        """
        ours = method.startswith(f"/{INFERENCE}/")
        if self._open[ours] >= self._most[ours]:
            metrics.SHED.labels(hop="gateway", reason="open_calls").inc()
            raise Overloaded(
                f"{self._most[ours]} calls are open at this gateway: retry later or use another gateway",
                hop="gateway",
                retry_after_ms=ROOM_RETRY_MS,
                reason="open_calls",
            )
        self._open[ours] += 1
        try:
            with self._calls.open_call(call.peer()) if ours else nullcontext():
                yield
        finally:
            self._open[ours] -= 1

    def _check(self, method: str, call: AnyCall) -> None:
        """Raise why a request can have no room now, whatever it asks for: before it is read."""
        if method == GENERATE:
            self._ingress.check_room(self._ingress.identify(call_authorization(call)))
        elif method == RESUME:
            self._ingress.check_place(self._ingress.identify(call_authorization(call)))

    async def _refuse(self, method: str, error: PenstockError, call: AnyCall) -> None:
        if method in STREAMS:
            await refuse_request(RequestTimeline(0, began_s=arrived_s()), error, call)
            set_status(call, error)
        else:
            record_refusal(error)
            await abort_call(call, error)


def _note_identity(method: str, call: AnyCall) -> CallIdentity:
    """Note how the client names the call, for whatever is made of it."""
    endpoint = GRPC_ENDPOINT if method in STREAMS else ""
    return note_identity(endpoint, client_metadata(call, REQUEST_ID), client_metadata(call, TRACEPARENT))


async def _sent(call: AnyCall) -> bytes:
    """Return the message of a call that has one."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_S):
            raw = await call.read()
    except TimeoutError as error:
        raise DeadlineExpired(
            f"the message did not come within {MESSAGE_TIMEOUT_S:g} s: send it faster", hop="gateway"
        ) from error
    if raw is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
        raise InvalidRequest("the call has no message: send one")
    return bytes(raw)


def _read(raw: bytes, read: Read, kind: Descriptor | None) -> Any:
    check_parts(raw, kind)
    try:
        return read(raw)
    except Exception as error:
        raise InvalidRequest(
            f"{len(raw)} bytes are no message of this call: send what the contract of this gateway says"
        ) from error
