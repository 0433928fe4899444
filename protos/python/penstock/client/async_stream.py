"""One answer as it is generated, for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from penstock.client._proto import inference_pb2 as pb
from penstock.client.errors import Cancelled, error_of
from penstock.client.stream_facts import StreamFacts
from penstock.client.stream_state import StreamRequest, StreamState

AsyncCall = grpc.aio.UnaryStreamCall[Any, pb.GenerateEvent]
StartAsyncCall = Callable[[StreamRequest, float | None], AsyncCall]


class AsyncStream(StreamFacts):
    """Iterate over it for the deltas. One task reads; a cancel of that task stops the work too."""

    def __init__(self, start: StartAsyncCall, state: StreamState) -> None:
        self._start = start
        self._state = state
        self._cancelled = asyncio.Event()
        self._call = self._begin()

    async def text(self) -> str:
        """Return all that is left to come, as one text."""
        return "".join([delta.text async for delta in self])

    async def texts(self) -> list[str]:
        """Return all that is left to come, as one text for each choice."""
        texts: dict[int, str] = {}
        async for delta in self:
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        return [texts.get(end.choice, "") for end in self.ends]

    def cancel(self) -> None:
        """Stop the work in every service; whoever reads gets Cancelled."""
        self._cancelled.set()
        self._call.cancel()

    def close(self) -> None:
        """Cancel what has not ended."""
        self._state.over = True
        self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.TextDelta:
        while not self._state.over:
            try:
                event = await self._call.read()
            except grpc.aio.AioRpcError as error:
                await self._begin_again(error)
                continue
            except asyncio.CancelledError:
                self.close()  # a read that is cancelled while its call is being sent may not have ended it
                if self._cancelled.is_set():
                    raise Cancelled("the call was cancelled") from None
                raise
            if not isinstance(event, pb.GenerateEvent):  # grpc.aio.EOF
                self._state.close()
                break
            delta = self._state.take_event(event)
            if delta is not None:
                return delta
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> AsyncCall:
        return self._start(self._state.next_message(), self._state.clock.remaining_s)

    async def _begin_again(self, rpc_error: grpc.aio.AioRpcError) -> None:
        """Wait, as the server has asked, and go on; or raise what the call ended with."""
        state = self._state
        error = error_of(
            rpc_error.code(), rpc_error.details(), rpc_error.trailing_metadata(), state.failed_end
        )
        if state.has_end:
            state.over = True
            return
        wait_s = state.wait_s(error)
        if wait_s is None:
            state.over = True
            raise error from rpc_error
        try:
            async with asyncio.timeout(wait_s):
                await self._cancelled.wait()
        except TimeoutError:
            self._call = self._begin()
            return
        state.over = True
        raise Cancelled("the call was cancelled while it waited to be sent again") from rpc_error
