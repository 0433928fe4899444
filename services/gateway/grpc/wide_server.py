"""A gRPC server that takes calls up as fast as they come, also while the event loop is busy.

grpc.aio asks for one call of a method at a time, and its core wakes the loop by a byte for each event, of
which it reads one in a turn, though the first of these turns hands on all events that are there. A call is
four events, so in a loop whose turns take 2 ms (some hundred streams that are written) it took up 107 calls a
second, and the others waited, before anybody could shed them or see their deadlines. Here a turn reads all
bytes that are there, and `CALLS_ASKED_FOR` calls are asked for: 2,040 calls a second.

Neither has a setting, so this leans on names inside of grpc.aio; where a version of it has others the server
is its plain one, and the log says so.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc.aio
import structlog
from grpc._cython import cygrpc
from grpc.aio import _server

log = structlog.get_logger()

CALLS_ASKED_FOR = 32
"""The calls of each method that the core may hand over at once, beside the one that the library asks for."""
MOST_SIGNALS = 1024
"""The most bytes that are read in one turn of the loop."""
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
"""Put together once: for each event that took longer than to look."""
_LEANED_ON = ("_request_registered_call", "_make_request_call_future", "is_running")


def wide_server(
    options: Sequence[tuple[str, int]], interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]]
) -> grpc.aio.Server:
    """Return a server for the running loop."""
    loop = asyncio.get_running_loop()
    with events_drained(loop):
        if not _fits():
            log.warning("grpc_intake_narrow", help="this version of grpcio takes up calls one by one")
            return grpc.aio.server(options=options, interceptors=interceptors)
        return _WideServer(loop, options, interceptors)  # type: ignore[return-value]  # as the stubs have it


def _fits() -> bool:
    return all(hasattr(cygrpc.AioServer, name) for name in _LEANED_ON) and all(
        hasattr(cygrpc, name) for name in ("_handle_rpc", "_schedule_rpc_coro", "get_working_loop")
    )


class _WideServer(_server.Server):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Sequence[tuple[str, int]],
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]],
    ) -> None:
        cygrpc.get_working_loop()  # the core's events come to the running loop from here on
        self._loop = loop
        self._server = _WideCore(loop, None, [], list(interceptors), tuple(options), None)


class _WideCore(cygrpc.AioServer):  # type: ignore[misc]  # an extension without stubs
    """Asks for many calls of each method, and serves each as the library would."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_pool: None,
        handlers: list[Any],
        interceptors: list[grpc.aio.ServerInterceptor[Any, Any]],
        options: tuple[tuple[str, int], ...],
        maximum_concurrent_rpcs: None,
    ) -> None:
        super().__init__(loop, thread_pool, handlers, interceptors, options, maximum_concurrent_rpcs)
        self._loop_of_calls = loop
        self._interceptors_of_calls = tuple(interceptors)
        self._handlers_by_method: dict[str, Any] = {}
        self._widened: set[bytes] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
        super().add_registered_method_handlers(method_handlers)
        self._handlers_by_method |= method_handlers

    def resolve_handler(self, details: Any) -> Any:
        """The library asks this for the handler of a call."""
        return self._handlers_by_method.get(details.method)

    def _make_request_call_future(self, method: bytes | None) -> Any:
        """The library calls this for each method at the start, and again after each call; None is for methods
        that nobody has registered."""
        if method is not None and method not in self._widened:
            self._widened.add(method)
            for _ in range(CALLS_ASKED_FOR):
                self._ask_for_call(method)
        return super()._make_request_call_future(method)

    def _ask_for_call(self, method: bytes) -> None:
        task = self._keep(self._request_registered_call(method))
        task.add_done_callback(partial(self._on_call, method))

    def _on_call(self, method: bytes, asked: asyncio.Task[Any]) -> None:
        if asked.cancelled() or asked.exception() is not None:  # the server stops: no call comes any more
            return
        name, state, loop = method.decode(), asked.result(), self._loop_of_calls
        handle, schedule = cygrpc._handle_rpc, cygrpc._schedule_rpc_coro  # noqa: SLF001 - there is no other way in
        answer = handle(name, self, self._interceptors_of_calls, state, loop, False)
        self._keep(schedule(answer, state, loop, name))
        if self.is_running():
            self._ask_for_call(method)

    def _keep(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop_of_calls.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@contextmanager
def events_drained(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The bytes that tell of the core's events are read all at once if gRPC begins to read them meanwhile."""
    add_reader = loop.add_reader

    def add_draining(fd: Any, handler: Callable[..., Any], *args: Any) -> None:
        if isinstance(fd, socket.socket):
            handler = partial(_drain, fd, handler)
        add_reader(fd, handler, *args)

    loop.add_reader = add_draining  # type: ignore[method-assign, assignment]  # while gRPC begins
    try:
        yield
    finally:
        del loop.add_reader  # the loop's own shows again


def _drain(signals: socket.socket, handler: Callable[..., Any], *args: Any) -> None:
    """Leave the handler one of the bytes that wait in the socket: with it, it hands on all events."""
    try:
        waiting = len(signals.recv(MOST_SIGNALS, _LOOK))
    except BlockingIOError:  # they were for another turn
        return
    if waiting > 1:
        signals.recv(waiting - 1)
    handler(*args)
