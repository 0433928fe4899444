"""A gRPC server without gRPC's core, which has threads and sockets of its own.

What stands above that core runs as it is: interceptors, the methods of services, statuses and metadata. Calls
are cancelled as the core cancels them, when their client has left or their deadline has come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from shared.tasks import Tasks
from tests.simulation.bus.network import Network
from tests.simulation.edges.frames import FrameConnection
from tests.simulation.edges.grpc_context import MemoryCall
from tests.simulation.edges.memory_sockets import MemoryListener

STOP_TIMEOUT_S = 5.0
"""A method that was cancelled ends within so much."""


class CallDetails(grpc.HandlerCallDetails):
    """Tell interceptors of a call."""

    def __init__(self, method: str, metadata: Any) -> None:
        self.method = method
        self.invocation_metadata = metadata


class MemoryGrpcServer:
    """Its methods are those of `grpc.aio.Server`."""

    def __init__(
        self,
        network: Network,
        _options: object = (),
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
    ) -> None:
        self._network = network
        self._interceptors = interceptors
        self._handlers: dict[str, Any] = {}
        self._listeners: list[MemoryListener] = []
        self._tasks = Tasks()
        self._calls: set[asyncio.Task[None]] = set()

    # ---- before it starts ---------------------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Methods are found by their names, which services register as well."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        """Raises RuntimeError where the address cannot be had."""
        host, _, port = address.rpartition(":")
        try:
            self._listeners.append(MemoryListener(self._network, host, int(port)))
        except OSError as error:
            raise RuntimeError(str(error)) from error
        return int(port)

    # ---- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        for listener in self._listeners:
            listener.set_reader(partial(self._accept, listener))

    async def stop(self, grace: float | None) -> None:
        """Listen no more, and cancel what has not ended after the grace."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        calls = {*self._calls}
        if calls and grace:
            await asyncio.wait(calls, timeout=grace)
        for call in calls:
            call.cancel()
        await self._tasks.finish(0.0)

    def _accept(self, listener: MemoryListener) -> None:
        accepted, _ = listener.accept()
        connection = FrameConnection()
        accepted.hand_to(connection)
        self._tasks.start("grpc-call", self._serve(connection))

    # ---- one call -----------------------------------------------------------------------------------

    async def _serve(self, connection: FrameConnection) -> None:
        head = await connection.receive()
        if head is None:
            return
        method, metadata, remaining_s = head.fields()
        loop = asyncio.get_running_loop()
        handler = await self._intercepted(CallDetails(method, metadata))
        deadline_s = None if remaining_s is None else loop.time() + remaining_s
        serialize: Callable[[Any], bytes] = getattr(handler, "response_serializer", None) or bytes
        call = MemoryCall(connection, metadata, deadline_s, serialize)
        running = asyncio.ensure_future(self._run(handler, call, method))
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        connection.on_lost = running.cancel
        if connection.lost:
            running.cancel()
        timer = None if deadline_s is None else loop.call_at(deadline_s, running.cancel)
        try:
            await asyncio.wait([running])
        finally:
            running.cancel()
            if timer is not None:
                timer.cancel()
        connection.on_lost = lambda: None
        if running.cancelled():
            connection.abort()
        else:
            call.end()
        call.call_back()

    async def _intercepted(self, details: CallDetails) -> Any:
        async def registered(asked: Any) -> Any:
            return self._handlers.get(asked.method)

        find: Callable[[Any], Any] = registered
        for interceptor in reversed(self._interceptors):
            find = _through(interceptor, find)
        return await find(details)

    async def _run(self, handler: Any, call: MemoryCall, method: str) -> None:
        """Let the method run; whatever it raises becomes the status of its call."""
        if handler is None:
            call.set_code(grpc.StatusCode.UNIMPLEMENTED)
            call.set_details(f"Method not found: {method}")
            return
        try:
            await _answer(handler, call)
        except grpc.aio.AbortError:
            """Its status is that of the abort."""
        except Exception as error:  # noqa: BLE001 - as the library answers it
            call.set_code(grpc.StatusCode.UNKNOWN)
            call.set_details(f"Unexpected {type(error)}: {error}")


def _through(interceptor: Any, find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda details: interceptor.intercept_service(find, details)


async def _answer(handler: Any, call: MemoryCall) -> None:
    message: Any = None
    if not handler.request_streaming:
        message = handler.request_deserializer(await call.read())
    if not handler.response_streaming:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        await call.write(await behaviour(message, call))
        return
    behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
    answers = behaviour(message, call)
    if inspect.isasyncgen(answers):
        async for answer in answers:
            await call.write(answer)
    else:
        await answers
