"""Read the messages of every gRPC call here, so that one that cannot be read is its sender's error.

The library would answer it as UNKNOWN and log a traceback, for anybody, before any key is looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from services.gateway.grpc.edge_status import abort_call
from services.gateway.grpc.edge_text import AnyCall
from services.gateway.session.ingress import record_refusal
from shared.errors import InvalidRequest

Read = Callable[[bytes], Any]


class ReadMessages(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Takes the place of the library's own reading, for each kind of call that the edge has."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the call, if there is one: the library answers where there is no method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        read = handler.request_deserializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _one(handler.unary_unary, read), response_serializer=handler.response_serializer
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _one(handler.unary_stream, read), response_serializer=handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(
            _many(handler.stream_stream, read), response_serializer=handler.response_serializer
        )


def _one(behaviour: Callable[[Any, AnyCall], Awaitable[Any]], read: Read) -> Callable[[bytes, AnyCall], Any]:
    async def answer(raw: bytes, call: AnyCall) -> Any:
        return await behaviour(await _message(raw, read, call), call)

    return answer


def _many(
    behaviour: Callable[[Any, AnyCall], AsyncIterator[Any]], read: Read
) -> Callable[[AsyncIterator[bytes], AnyCall], AsyncIterator[Any]]:
    async def answer(raws: AsyncIterator[bytes], call: AnyCall) -> AsyncIterator[Any]:
        messages = (await _message(raw, read, call) async for raw in raws)
        async for response in behaviour(messages, call):
            yield response

    return answer


async def _message(raw: bytes, read: Read, call: AnyCall) -> Any:
    """Return the message, or end the call with INVALID_ARGUMENT."""
    try:
        return read(raw)
    except Exception:  # noqa: BLE001 - whatever the decoder raises, what was sent is no message
        error = InvalidRequest(
            f"{len(raw)} bytes are no message of this call: send what the contract of this gateway says"
        )
        record_refusal(error)
        await abort_call(call, error)
