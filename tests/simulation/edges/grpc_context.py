"""The context that a method of a gRPC service is called with, where no gRPC is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from tests.simulation.edges.frames import FrameConnection, FrameKind

Metadata = Sequence[tuple[str, str | bytes]]
Serialize = Callable[[Any], bytes]


class MemoryCall:
    """One call at its server. Its methods are those of `grpc.aio.ServicerContext` that an edge uses."""

    def __init__(
        self, connection: FrameConnection, metadata: Metadata, deadline_s: float | None, serialize: Serialize
    ) -> None:
        self._connection = connection
        self._metadata = tuple((name, value) for name, value in metadata)
        self._deadline_s = deadline_s
        self._serialize = serialize
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._has_initial = False
        self._callbacks: list[Callable[[Any], None]] = []

    # ---- asked by the method ------------------------------------------------------------------------

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        host, port = self._connection.other_end
        return f"memory:{host}:{port}"

    def time_remaining(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    async def read(self) -> Any:
        frame = await self._connection.receive()
        return grpc.aio.EOF if frame is None else frame.payload  # type: ignore[attr-defined]  # the stubs lack it

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        if self._has_initial:
            raise grpc.aio.UsageError("the initial metadata has been sent already")
        self._has_initial = True
        self._connection.send_fields(FrameKind.INITIAL, list(metadata))
        await self._connection.drain()

    async def write(self, message: Any) -> None:
        """Raises InternalError, as gRPC does, where the call has ended."""
        if not self._has_initial:
            await self.send_initial_metadata(())
        if self._connection.lost:
            raise grpc.aio.InternalError("the call has ended: nothing can be written")
        self._connection.send(FrameKind.MESSAGE, self._serialize(message))
        await self._connection.drain()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        self.set_code(code)
        self.set_details(details)
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    # ---- told by the server -------------------------------------------------------------------------

    def end(self) -> None:
        """The method has returned: its client is told so."""
        code = self._code or grpc.StatusCode.OK
        self._connection.send_fields(FrameKind.STATUS, code.value[0], self._details, list(self._trailing))
        self._connection.close()

    def call_back(self) -> None:
        for callback in self._callbacks:
            callback(self)
