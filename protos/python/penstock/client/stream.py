"""One answer as it is generated, for programs with threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from penstock.client._proto import inference_pb2 as pb
from penstock.client.errors import Cancelled, PenstockError, error_of
from penstock.client.stream_facts import StreamFacts
from penstock.client.stream_state import StreamRequest, StreamState


class StreamCall(Iterator[pb.GenerateEvent], Protocol):
    """The object that gRPC gives for a call; its own types leave half of it out."""

    def cancel(self) -> object: ...


StartCall = Callable[[StreamRequest, float | None], StreamCall]


class Stream(StreamFacts):
    """Iterate over it for the deltas. One thread reads; `cancel` may be called from any."""

    def __init__(self, start: StartCall, state: StreamState) -> None:
        self._start = start
        self._state = state
        self._cancelled = threading.Event()
        self._call = self._begin()

    def text(self) -> str:
        """Return all that is left to come, as one text."""
        return "".join(delta.text for delta in self)

    def texts(self) -> list[str]:
        """Return all that is left to come, as one text for each choice."""
        texts: dict[int, str] = {}
        for delta in self:
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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pb.TextDelta:
        while not self._state.over:
            try:
                event = next(self._call)
            except StopIteration:
                self._state.close()
                break
            except grpc.RpcError as error:
                self._begin_again(error)
                continue
            delta = self._state.take_event(event)
            if delta is not None:
                return delta
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> StreamCall:
        return self._start(self._state.next_message(), self._state.clock.remaining_s)

    def _begin_again(self, rpc_error: grpc.RpcError) -> None:
        """Wait, as the server has asked, and go on; or raise what the call ended with."""
        state = self._state
        error = rpc_error_of(rpc_error, state.failed_end)
        if state.has_end:
            state.over = True
            return
        wait_s = state.wait_s(error)
        if wait_s is None:
            state.over = True
            raise error from rpc_error
        if self._cancelled.wait(wait_s):
            state.over = True
            raise Cancelled("the call was cancelled while it waited to be sent again") from rpc_error
        self._call = self._begin()
        if self._cancelled.is_set():  # between the two
            self._call.cancel()


def rpc_error_of(error: grpc.RpcError, end: pb.Terminal | None = None) -> PenstockError:
    call: Any = error  # what a call raises is the call itself
    return error_of(call.code(), call.details(), call.trailing_metadata(), end)
