"""A channel to a gRPC server in memory, for the stubs and clients that are made for grpc.aio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
import grpc.aio

from tests.simulation.edges.frames import FrameConnection, FrameKind

CODES = {code.value[0]: code for code in grpc.StatusCode}


class MemoryChannel:
    """Its methods are those of `grpc.aio.Channel`. Each call dials anew, from where it is made."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: object,
    ) -> Callable[..., StreamCall]:
        def begin(
            request: Any, *, timeout: float | None = None, metadata: Sequence[tuple[str, str]] = ()
        ) -> StreamCall:
            head = (method, [list(pair) for pair in metadata or ()], timeout)
            return StreamCall(self._address, head, request_serializer(request), response_deserializer)

        return begin

    def unary_unary(self, method: str, **how: Any) -> Callable[..., StreamCall]:
        """A call that is awaited, for its one answer."""
        return self.unary_stream(method, **how)

    async def channel_ready(self) -> None:
        """There is nothing to get ready."""

    async def close(self, grace: float | None = None) -> None:
        """There is nothing that stays open between calls."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()


class StreamCall:
    """A call of a client. It raises AioRpcError for a status that is not OK, and DEADLINE_EXCEEDED by its own
    clock."""

    def __init__(
        self,
        address: tuple[str, int],
        head: tuple[str, Sequence[Any], float | None],
        message: bytes,
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self._address = address
        self._head = head
        self._message = message
        self._deserialize = deserialize
        timeout_s = head[2]
        self._deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._connection: FrameConnection | None = None
        self._initial: list[tuple[str, str]] = []
        self._status: tuple[grpc.StatusCode, str, list[Any]] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._events()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._one().__await__()

    async def _one(self) -> Any:
        answers = [event async for event in self]
        return answers[0]

    async def _events(self) -> AsyncIterator[Any]:
        while (event := await self.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            yield event

    async def read(self) -> Any:
        """Return the next answer, or EOF."""
        while True:
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    frame = await self._next()
            except TimeoutError:
                self.cancel()
                self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", [])
            except OSError as error:
                self._fail(grpc.StatusCode.UNAVAILABLE, f"failed to connect: {error}", [])
            if frame is None:
                self._fail(grpc.StatusCode.UNAVAILABLE, "Socket closed", [])
            elif frame.kind is FrameKind.MESSAGE:
                return self._deserialize(frame.payload)
            elif frame.kind is FrameKind.INITIAL:
                self._initial = [tuple(pair) for pair in frame.fields()[0]]
            else:
                number, details, trailing = frame.fields()
                self._status = (CODES[number], details, trailing)
                if number:
                    self._fail(*self._status)
                return grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

    async def _next(self) -> Any:
        if self._connection is None:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(FrameConnection, *self._address)
            method, metadata, _ = self._head
            left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - loop.time())
            self._connection.send_fields(FrameKind.HEAD, method, metadata, left_s)
            self._connection.send(FrameKind.MESSAGE, self._message)
        return await self._connection.receive()

    def _fail(self, code: grpc.StatusCode, details: str, trailing: Sequence[Any]) -> NoReturn:
        self._status = (code, details, list(trailing))
        raise grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(*self._initial), grpc.aio.Metadata(*map(tuple, trailing)), details, None
        )

    async def initial_metadata(self) -> list[tuple[str, str]]:
        """Return what has come of it so far."""
        return self._initial

    def cancel(self) -> bool:
        if self._connection is not None:
            self._connection.abort()
        return self._status is None
