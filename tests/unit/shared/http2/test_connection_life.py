"""A connection ends where nobody is at its other end, or nobody gets on; who is only slow keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from shared.http2 import grpc_call, http2_connection, keepalive
from shared.http2.grpc_server import GrpcServer, listening_sockets
from shared.http2.http2_connection import Http2Connection
from shared.http2.limits import MAX_UNSENT_BYTES, ServerLimits
from tests.support import http2_wire as wire
from tests.support.wait import until

WAIT_S = 30.0
SOON_S = 0.1
OPEN = wire.PREFACE + wire.settings()


class RawClient:
    """A client that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def frame(self, kind: int | None = None) -> wire.WireFrame:
        """The next frame, of that kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind in (None, head[3]):
                    return wire.WireFrame(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)

    async def closed(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


class Hung:
    """Methods that echo, write without end, and hang."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.begun = 0

    async def echo(self, message: bytes, _call: Any) -> bytes:
        self.begun += 1
        return message

    async def pour(self, _message: bytes, call: Any) -> None:
        try:
            while True:
                await call.write(bytes(10_000))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def large(self, _message: bytes, call: Any) -> None:
        call.write_now(bytes(10_000))

    async def wait(self, _messages: Any, _call: Any) -> None:
        self.begun += 1
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[tuple[GrpcServer, Hung, int]]:
    server, methods = GrpcServer(ServerLimits(**limits)), Hung()
    handlers = {
        "echo": grpc.unary_unary_rpc_method_handler(methods.echo),
        "pour": grpc.unary_stream_rpc_method_handler(methods.pour),
        "large": grpc.unary_stream_rpc_method_handler(methods.large),
        "wait": grpc.stream_stream_rpc_method_handler(methods.wait),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, methods, port
    finally:
        await server.stop(None)


@asynccontextmanager
async def client(port: int, *said: bytes) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    made = RawClient(reader, writer)
    made.say(*said)
    try:
        yield made
    finally:
        writer.transport.abort()


def call(method: str, *more: tuple[str, str], stream: int = 1, message: bytes | None = b"") -> bytes:
    request = [pair if pair[0] != ":path" else (":path", f"/a.B/{method}") for pair in (*wire.REQUEST, *more)]
    names = [name for name, _ in more]
    request = [pair for at, pair in enumerate(request) if at >= len(wire.REQUEST) or pair[0] not in names]
    request.sort(key=lambda pair: pair[0][0] != ":")
    head = wire.frame(wire.HEADERS, wire.END_HEADERS, stream, wire.block(request))
    return head if message is None else head + wire.data(stream, wire.message(message), end=True)


async def test_who_sends_on_when_its_connection_ends_hears_why() -> None:
    async with serving() as (_, _, port), client(port, OPEN) as talkative:
        await talkative.frame(wire.SETTINGS)
        talkative.say(wire.frame(wire.DATA), bytes(1 << 20))  # of no stream: that ends it
        await talkative.writer.drain()
        talkative.say(bytes(1 << 20))
        await talkative.writer.drain()
        async with asyncio.timeout(WAIT_S):
            said = await talkative.reader.read()
        assert wire.GOAWAY in {each.kind for each in wire.read_frames(said)}


async def test_who_sends_too_much_when_its_connection_ends_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_connection, "LAST_WORDS_S", 3600.0)
    monkeypatch.setattr(http2_connection, "MAX_IGNORED_BYTES", 1 << 16)
    async with (
        serving() as (server, _, port),
        client(port, OPEN, wire.frame(wire.DATA), bytes(1 << 20)) as loud,
    ):
        await loud.closed()
        await until(lambda: not server._connections)


async def test_who_does_not_close_when_its_connection_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "LAST_WORDS_S", SOON_S)
    async with serving() as (server, _, port), client(port, OPEN, wire.frame(wire.DATA)) as still:
        assert wire.GOAWAY in {each.kind for each in wire.read_frames(await still.closed())}
        await until(lambda: not server._connections)


@pytest.mark.parametrize("said", [b"", wire.PREFACE, wire.PREFACE[:5]])
async def test_who_does_not_say_what_it_is_is_closed(said: bytes) -> None:
    async with serving(handshake_s=SOON_S) as (server, _, port), client(port, said) as silent:
        await silent.closed()
        await until(lambda: not server._connections)
        assert server._places == 0


@pytest.mark.parametrize(
    "half", [b"\0\0", wire.settings((4, 5))[:-1], wire.frame(wire.HEADERS, 0, 1, wire.block(wire.REQUEST))]
)
async def test_who_does_not_end_a_frame_or_its_headers_is_closed(
    half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "MAX_HALF_S", SOON_S)
    monkeypatch.setattr(keepalive, "LAST_LOOK_S", SOON_S)
    limits = {"handshake_s": SOON_S, "keepalive_s": SOON_S, "keepalive_timeout_s": 3600.0}
    async with serving(**limits) as (_, _, port), client(port, OPEN, half) as slow:
        await slow.closed()


async def test_who_does_not_answer_a_ping_is_closed_and_who_does_is_not() -> None:
    limits = {"handshake_s": SOON_S, "keepalive_s": SOON_S, "keepalive_timeout_s": SOON_S}
    async with (
        serving(**limits) as (_, methods, port),
        client(port, OPEN) as gone,
        client(port, OPEN) as there,
    ):
        there.say(call("wait", message=None))
        for _ in range(4):
            asked = await there.frame(wire.PING)
            there.say(wire.frame(wire.PING, wire.ACK, payload=asked.payload))
        assert wire.PING in {each.kind for each in wire.read_frames(await gone.closed())}
        there.say(call("echo", stream=3))
        await there.frame(wire.HEADERS)
        assert methods.begun == 2


async def test_who_asks_nothing_for_long_is_asked_to_go() -> None:
    limits = {"handshake_s": SOON_S, "idle_s": SOON_S}
    async with serving(**limits) as (_, _, port), client(port, OPEN, call("echo")) as idle:
        assert (await idle.frame(wire.GOAWAY)).payload == b"\x7f\xff\xff\xff" + bytes(4)
        asked = await idle.frame(wire.PING)
        idle.say(call("echo", stream=3), wire.frame(wire.PING, wire.ACK, payload=asked.payload))
        assert (await idle.frame(wire.GOAWAY)).payload == (3).to_bytes(4, "big") + bytes(4)
        assert (await idle.frame(wire.HEADERS)).stream == 3  # it was on its way
        await idle.closed()


async def test_a_client_that_does_not_take_the_rest_of_an_answer_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_call, "MAX_LINGER_S", SOON_S)
    begun = wire.PREFACE + wire.settings((4, 100))
    async with serving() as (server, _, port), client(port, begun, call("large")) as slow:
        lost = await slow.frame(wire.RST_STREAM)
        assert int.from_bytes(lost.payload, "big") == wire.CANCEL
        (connection,) = server._connections
        assert connection.codec.stream_count == 0
        slow.say(call("echo", stream=3))
        await slow.frame(wire.HEADERS)


async def test_a_socket_that_takes_nothing_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "MAX_LINGER_S", SOON_S)
    limits = {"handshake_s": SOON_S, "keepalive_s": SOON_S, "keepalive_timeout_s": 3600.0}
    wide = wire.PREFACE + wire.settings((4, 2**31 - 1)) + wire.window_update(0, 2**30)
    async with serving(**limits) as (server, methods, port), client(port, wide, call("pour")):
        await asyncio.wait_for(methods.cancelled.wait(), WAIT_S)
        await until(lambda: not server._connections)


# ---- one connection in memory ---------------------------------------------------------------------


class PipeEnd(asyncio.Transport):
    """Keeps what is written, and says when it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.reading = True
        self.over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("::1", 5, 0, 0) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Its test says when it is full."""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_read(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        """Return False, as with TLS."""
        return False

    def close(self) -> None:
        self.over = True

    def abort(self) -> None:
        self.over = True


@asynccontextmanager
async def piped() -> AsyncIterator[tuple[Http2Connection, PipeEnd, Hung]]:
    server, methods, pipe = GrpcServer(ServerLimits(max_calls=3000)), Hung(), PipeEnd()
    handlers = {
        "echo": grpc.unary_unary_rpc_method_handler(methods.echo),
        "pour": grpc.unary_stream_rpc_method_handler(methods.pour),
        "wait": grpc.stream_stream_rpc_method_handler(methods.wait),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
    connection = Http2Connection(server._limits, server._begin_call, server._forget)
    connection.connection_made(pipe)
    try:
        yield connection, pipe, methods
    finally:
        connection.connection_lost(None)
        await server.stop(None)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_that_come_in_one_piece_begin_in_one_turn_and_leave_in_one() -> None:
    async with piped() as (connection, pipe, methods):
        connection.data_received(OPEN + b"".join(call("echo", stream=1 + 2 * n) for n in range(100)))
        await turns()
        assert methods.begun == 100
        answers = [wire.read_frames(each) for each in pipe.writes]
        assert [
            sum(frame.kind == wire.DATA for frame in frames) for frames in answers if len(frames) > 9
        ] == [100]
        assert connection.peer == "ipv6:%5B::1%5D:5"


async def test_nothing_is_read_from_who_does_not_read() -> None:
    async with piped() as (connection, pipe, _):
        connection.data_received(OPEN)
        await turns()
        connection.pause_writing()
        written, sent = len(pipe.writes), 0
        while pipe.is_read():
            connection.data_received(b"".join(call("Missing", stream=1 + 2 * (sent + n)) for n in range(10)))
            sent += 10
            await turns()
            assert sent < 3000
        assert len(pipe.writes) == written
        connection.resume_writing()
        assert pipe.is_read()
        assert sum(map(len, pipe.writes[written:])) > MAX_UNSENT_BYTES


async def test_a_writer_waits_while_the_socket_is_full_and_goes_on_then() -> None:
    async with piped() as (connection, pipe, methods):
        wide = wire.PREFACE + wire.settings((4, 2**31 - 1)) + wire.window_update(0, 2**30)
        connection.pause_writing()
        connection.data_received(wide + call("pour"))
        await turns(50)
        held = connection.codec.unsent_bytes
        assert held < 3 * MAX_UNSENT_BYTES
        await turns(50)
        assert connection.codec.unsent_bytes == held
        connection.resume_writing()
        before = sum(map(len, pipe.writes))
        await turns(50)
        assert sum(map(len, pipe.writes)) > before
        connection.data_received(wire.reset(1))
        await turns()
        assert methods.cancelled.is_set()


async def test_a_goodbye_is_said_twice_and_what_is_open_goes_on() -> None:
    async with piped() as (connection, pipe, methods):
        connection.data_received(OPEN + call("wait", message=None))
        await turns()
        connection.leave()
        await turns()
        (first, asked) = wire.read_frames(pipe.writes[-1])
        assert (first.kind, first.payload[:4]) == (wire.GOAWAY, b"\x7f\xff\xff\xff")
        connection.data_received(call("wait", stream=3, message=None))
        connection.data_received(wire.frame(wire.PING, wire.ACK, payload=asked.payload))
        await turns()
        last = wire.read_frames(pipe.writes[-1])[-1]
        assert (last.kind, last.payload[3]) == (wire.GOAWAY, 3)
        assert methods.begun == 2
        assert not pipe.over
        connection.data_received(wire.reset(1) + wire.reset(3))
        await until(lambda: pipe.over)


# ---- what is no call of gRPC ----------------------------------------------------------------------


async def answer_of(*said: bytes) -> list[wire.WireFrame]:
    async with piped() as (connection, pipe, _):
        connection.data_received(OPEN + b"".join(said))
        await turns(5)
        return [each for each in wire.read_frames(b"".join(pipe.writes)) if each.stream == 1]


@pytest.mark.parametrize(
    ("change", "status"), [((":method", "GET"), b"405"), (("content-type", "text/html"), b"415")]
)
async def test_a_request_that_is_no_call_gets_a_status_of_http(
    change: tuple[str, str], status: bytes
) -> None:
    head, *_ = await answer_of(call("echo", change))
    assert head.flags & wire.END_STREAM
    assert status in head.payload


@pytest.mark.parametrize(
    ("head", "code", "words"),
    [
        (("grpc-timeout", "1x"), b"13", b"grpc-timeout is at most"),
        (("a-bin", "!"), b"13", b"no base64"),
        (("grpc-encoding", "br"), b"12", b"is not known here"),
        (("x", "y" * 17_000), b"8", b"the headers are more than 16384 bytes"),
    ],
)
async def test_a_head_that_cannot_be_used_is_told_why(
    head: tuple[str, str], code: bytes, words: bytes
) -> None:
    sent = call("echo", head) if len(head[1]) < 16_000 else _in_two(call("echo", head, message=None))
    answer = (await answer_of(sent))[0]
    assert b"\x0bgrpc-status" + bytes((len(code),)) + code in answer.payload
    assert words in answer.payload
    assert b"grpc-accept-encoding" in answer.payload


def _in_two(head: bytes) -> bytes:
    payload = head[9:]
    return wire.frame(wire.HEADERS, 0, 1, payload[:16000]) + wire.frame(
        wire.CONTINUATION, wire.END_HEADERS, 1, payload[16000:]
    )


async def test_a_compressed_message_without_a_compression_is_refused() -> None:
    sent = call("echo", message=None) + wire.data(1, wire.message(b"x", compressed=1), end=True)
    (answer, *_) = await answer_of(sent)
    assert b"grpc-status\x0213" in answer.payload


async def test_connections_beyond_their_number_are_closed_at_once() -> None:
    waits = call("wait", message=None)
    async with (
        serving(max_connections=1) as (_, _, port),
        client(port, OPEN, waits) as first,
        client(port, OPEN) as second,
    ):
        await first.frame()
        await second.closed()


async def test_a_port_that_is_taken_is_a_runtime_error_and_one_that_is_shared_is_not() -> None:
    async with serving() as (_, _, port):
        with pytest.raises(RuntimeError, match="cannot listen at 127"):
            GrpcServer(ServerLimits()).add_insecure_port(f"127.0.0.1:{port}")
    first = listening_sockets("127.0.0.1", 0, shared=True)
    second = listening_sockets("127.0.0.1", first[0].getsockname()[1], shared=True)
    for each in (*first, *second):
        each.close()
