"""One call, as its method is given it: its messages, its metadata and its end.

Its methods are those of `grpc.aio.ServicerContext` that servers of ours use, and mean the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import grpc
import grpc.aio

from shared.http2.codes import CodecEvent
from shared.http2.compression import IDENTITY, TooLargeOpened, decompressed
from shared.http2.limits import MAX_LINGER_S
from shared.http2.metadata import ANSWER, CallHead, Metadata, status_headers, written

if TYPE_CHECKING:
    from shared.http2._codec import Connection
    from shared.http2.http2_connection import Http2Connection

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
OK = grpc.StatusCode.OK
WHY_BROKEN = "what the client sent is no message of gRPC, or not all of one"


class CallPlace(NamedTuple):
    """The place that messages of a call are written to: its codec, by the number of its stream there, each of
    at most `max_bytes`. `flush` has what is written sent in this turn of the loop."""

    codec: Connection
    stream: int
    max_bytes: int
    flush: Callable[[], None]


class GrpcCall:
    def __init__(self, connection: Http2Connection, stream: int, head: CallHead) -> None:
        self._connection = connection
        self._codec = connection.codec
        self._stream = stream
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._deadline_s = None if head.timeout_s is None else self._loop.time() + head.timeout_s
        self._serialize: Callable[[Any], bytes] | None = None
        self._code = OK
        self._details = ""
        self._trailing: Metadata = ()
        self._answered = False
        self._ended = False
        self._come: asyncio.Future[tuple[int, int, int, bytes]] | None = None
        self._room: asyncio.Event | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    # ---- asked by the method ------------------------------------------------------------------------

    @property
    def method(self) -> str:
        return self._head.method

    def invocation_metadata(self) -> Metadata:
        return self._head.metadata

    def peer(self) -> str:
        """Return the other end as gRPC writes it: `ipv4:HOST:PORT`, or `ipv6:%5BHOST%5D:PORT`."""
        return self._connection.peer

    def time_remaining(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._loop.time())

    def done(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._ended

    def cancelled(self) -> bool:
        return self._ended and self._code is grpc.StatusCode.CANCELLED

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple((name, value) for name, value in trailing_metadata)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        if code is OK:
            raise grpc.aio.UsageError("abort with a status that is not OK")
        self.set_code(code)
        self.set_details(details)
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    async def read(self) -> Any:
        """Return the next message as bytes, or EOF."""
        event = self._codec.want(self._stream)
        if event is None:
            self._come = self._loop.create_future()
            self._connection.flush_soon()  # the client may be told to send more
            try:
                event = await self._come
            finally:
                self._come = None
        kind, _, code, data = event
        if kind == CodecEvent.MESSAGE:
            self._connection.flush_soon()
            return await self._opened(data) if code else data
        if kind == CodecEvent.END:
            return EOF
        if kind == CodecEvent.TOO_LARGE:
            await self._refuse_size(code)
        if kind == CodecEvent.BROKEN:
            await self.abort(grpc.StatusCode.INTERNAL, WHY_BROKEN)
        raise asyncio.CancelledError

    async def messages(self, read: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
        """Yield all that come."""
        while (raw := await self.read()) is not EOF:
            yield raw if read is None else read(raw)

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        if self._answered:
            raise grpc.aio.UsageError("the initial metadata has been sent already")
        self._check_open()
        self._answer(metadata)

    async def write(self, message: Any) -> None:
        """Return when there is room for another. Raises InternalError, as gRPC does, at the end of a call."""
        if not self.write_now(message):
            await self.room()

    def write_now(self, message: Any) -> bool:
        """Write, and return whether there is room for another message: else `room` is to be awaited first.

        Raises InternalError where the call has ended.
        """
        if not self._answered:
            self._check_open()
            self._answer(())
        data = message if self._serialize is None else self._serialize(message)
        if len(data) > self._connection.limits.max_answer_bytes:
            raise ValueError(
                f"an answer of {len(data)} bytes is more than {self._connection.limits.max_answer_bytes}"
            )
        left = self._codec.write(self._stream, data)
        if left < 0:
            self._check_open(force=True)
        self._connection.flush_soon()
        return left == 1

    def place(self) -> CallPlace:
        """Return where `write_now` writes, for who does so beside Python once something has been written."""
        connection = self._connection
        return CallPlace(self._codec, self._stream, connection.limits.max_answer_bytes, connection.flush_soon)

    async def room(self) -> None:
        """Return when the client has taken most of what was written."""
        if self._room is None:
            self._room = asyncio.Event()
            await self._room.wait()
            return
        await self._room.wait()

    # ---- told by the connection ---------------------------------------------------------------------

    def begin(self, task: asyncio.Task[None]) -> None:
        """`task` runs the method; its end is that of the call."""
        self._task = task
        if self._deadline_s is not None:
            self._expiry = self._loop.call_at(self._deadline_s, self._expire)
        task.add_done_callback(self._on_done)

    def use(self, serialize: Callable[[Any], bytes] | None) -> None:
        """Have answers written so."""
        self._serialize = serialize

    def take(self, event: tuple[int, int, int, bytes]) -> None:
        """The message has come that was asked for, or the end of all."""
        if self._come is not None and not self._come.done():
            self._come.set_result(event)

    def free(self) -> None:
        """There is room for more."""
        if self._room is not None:
            self._room.set()
            self._room = None

    def drop(self) -> None:
        """The call is gone, by its client or with its connection."""
        if not self._ended:
            self._code = grpc.StatusCode.CANCELLED
            self._end()

    def end_with(self, code: grpc.StatusCode, details: str) -> None:
        """End the call from here, whatever its method does."""
        if not self._ended:
            self.set_code(code)
            self.set_details(details)
            self.finish()

    def finish(self) -> None:
        """Send the status, behind all that was written."""
        if self._ended:
            return
        try:
            status = status_headers(self._code.value[0], self._details, self._trailing)
        except ValueError as error:
            self.set_code(grpc.StatusCode.INTERNAL)
            status = status_headers(self._code.value[0], str(error), ())
        sent = self._codec.finish(self._stream, status if self._answered else [*ANSWER, *status])
        self._answered = True
        if not sent:
            self._loop.call_later(MAX_LINGER_S, self._connection.give_up, self._stream)
        self._connection.flush_soon()
        self._end()

    # ---- its own ------------------------------------------------------------------------------------

    def _answer(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._codec.respond(self._stream, [*ANSWER, *written(metadata)])
        self._answered = True
        self._connection.flush_soon()

    def _check_open(self, *, force: bool = False) -> None:
        if self._ended or force:
            raise grpc.aio.InternalError("the call has ended: nothing can be written")

    def _expire(self) -> None:
        self.end_with(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _end(self) -> None:
        self._ended = True
        if self._expiry is not None:
            self._expiry.cancel()
        self.free()
        self._connection.forget(self._stream)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _on_done(self, _task: asyncio.Task[None]) -> None:
        self.finish()  # it was cancelled before its first step
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    async def _opened(self, data: bytes) -> bytes:
        if self._head.encoding == IDENTITY:
            await self.abort(grpc.StatusCode.INTERNAL, "a compressed message of a call without grpc-encoding")
        try:
            return decompressed(data, self._head.encoding, self._connection.limits.max_message_bytes)
        except TooLargeOpened:
            await self._refuse_size(None)
        except ValueError as error:
            await self.abort(grpc.StatusCode.INTERNAL, str(error))

    async def _refuse_size(self, found_bytes: int | None) -> NoReturn:
        most = self._connection.limits.max_message_bytes
        shown = "" if found_bytes is None else f" ({found_bytes} vs. {most})"
        await self.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"Received message larger than max{shown}: send at most {most} bytes",
        )
