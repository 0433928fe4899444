"""Call the method that a call is for, in whichever of gRPC's four ways it is written."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog

from shared.http2.compression import is_known
from shared.http2.grpc_call import EOF, GrpcCall

log = structlog.get_logger()

FindHandler = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class Http2CallDetails(grpc.HandlerCallDetails):
    """Tell interceptors of a call."""

    def __init__(self, method: str, metadata: Any) -> None:
        self.method = method
        self.invocation_metadata = metadata


def through(interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]], find: FindHandler) -> FindHandler:
    """Return what finds a handler once all interceptors have seen the call, the first one first."""
    for interceptor in reversed(interceptors):
        find = partial(interceptor.intercept_service, find)
    return find


async def run_call(find: FindHandler, call: GrpcCall, encoding: str) -> None:
    """Return when the call has ended, with whatever it ends."""
    try:
        if not is_known(encoding):
            message = f"the compression {encoding[:40]!r} is not known here: use one of grpc-accept-encoding"
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, message)
        handler = await find(Http2CallDetails(call.method, call.invocation_metadata()))
        if handler is None:
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        await _answer(handler, call)
    except grpc.aio.AbortError:
        """Its status is that of the abort."""
    except asyncio.CancelledError:
        call.end_with(grpc.StatusCode.CANCELLED, "the server has cancelled the call")
        raise
    except Exception as error:
        if call.done():
            return
        log.exception("grpc_call_failed", method=call.method)
        call.set_code(grpc.StatusCode.UNKNOWN)
        call.set_details(f"Unexpected {type(error)}: {error}")
    call.finish()


async def _answer(handler: Any, call: GrpcCall) -> None:
    call.use(handler.response_serializer)
    read = handler.request_deserializer
    if handler.request_streaming:
        taken: Any = call.messages(read)
    else:
        taken = await call.read()
        if taken is EOF:
            await call.abort(grpc.StatusCode.INTERNAL, "the call has no message: send one")
        taken = taken if read is None else read(taken)
    if not handler.response_streaming:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        call.write_now(await behaviour(taken, call))
        return
    behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
    answers = behaviour(taken, call)
    if not inspect.isasyncgen(answers):
        await answers
        return
    async for answer in answers:
        await call.write(answer)
