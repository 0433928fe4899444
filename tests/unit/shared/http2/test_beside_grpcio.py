"""Calls of grpcio's clients end the same at our server as at grpc.aio's: each test runs on both.

What a client has of a call is compared: messages, status, metadata both ways, cancels and deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.http2.grpc_server import GrpcServer
from shared.http2.limits import ServerLimits

WAIT_S = 30.0
LARGE = bytes(range(256)) * 12_000
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
OWN = (("grpc.use_local_subchannel_pool", 1),)


class Methods:
    """A service whose methods do what their names say."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.called_back = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def echo(self, message: bytes, call: Any) -> bytes:
        self.seen = [pair for pair in call.invocation_metadata() if pair[0] != "user-agent"]
        await call.send_initial_metadata((("begins", "so"), ("raw-bin", b"\0\xff")))
        call.set_trailing_metadata((("ends", "so"), ("raw-bin", b"\xff\0")))
        return message

    async def fail(self, message: bytes, call: Any) -> bytes:
        call.set_trailing_metadata((("told", "before"),))
        await call.abort(grpc.StatusCode.NOT_FOUND, f"none: 100 % ä\n{message!r}", (("told", "why"),))
        return b"not seen"

    async def set(self, _message: bytes, call: Any) -> bytes:
        call.set_code(grpc.StatusCode.DATA_LOSS)
        call.set_details("set")
        return b"not seen"

    async def break_down(self, _message: bytes, _call: Any) -> bytes:
        raise KeyError("a bug")

    async def count(self, message: bytes, _call: Any) -> AsyncIterator[bytes]:
        for number in range(int(message)):
            yield b"%d" % number

    async def write(self, message: bytes, call: Any) -> None:
        for _ in range(3):
            await call.write(message)

    async def add(self, messages: AsyncIterator[bytes], _call: Any) -> bytes:
        return b"".join([each async for each in messages])

    async def talk(self, messages: AsyncIterator[bytes], _call: Any) -> AsyncIterator[bytes]:
        async for each in messages:
            yield each * 2

    async def hang(self, _message: bytes, call: Any) -> None:
        call.add_done_callback(lambda _: self.called_back.set())
        await call.write(b"%.0f" % (call.time_remaining() or -1))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            **{
                name: grpc.unary_unary_rpc_method_handler(getattr(self, name))
                for name in ("echo", "fail", "set", "break_down")
            },
            **{
                name: grpc.unary_stream_rpc_method_handler(getattr(self, name))
                for name in ("count", "write", "hang")
            },
            "add": grpc.stream_unary_rpc_method_handler(self.add),
            "talk": grpc.stream_stream_rpc_method_handler(self.talk),
        }


class Both:
    """A server of either kind, and channels to it."""

    def __init__(self, kind: str, server: Any, methods: Methods, port: int) -> None:
        self.kind, self.server, self.methods = kind, server, methods
        self.address = f"127.0.0.1:{port}"

    def channel(self, *options: tuple[str, Any], **how: Any) -> Any:
        return grpc.aio.insecure_channel(self.address, options=(*OWN, *options), **how)


Serve = Callable[[], Awaitable[Both]]


@pytest.fixture(params=["grpcio", "native"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    server: Any
    if request.param == "native":
        server = GrpcServer(ServerLimits(max_message_bytes=8 << 20, max_answer_bytes=8 << 20))
    else:
        sizes = ("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)
        server = grpc.aio.server(options=sizes)
    methods = Methods()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", methods.handlers()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Both(request.param, server, methods, port)
    finally:
        await server.stop(None)


async def outcome(call: Any) -> tuple[list[bytes], grpc.StatusCode, str, list[Any]]:
    """Messages, code, details and trailing metadata."""
    got: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        try:
            if hasattr(call, "__aiter__"):
                async for message in call:
                    got.append(message)  # noqa: PERF401 - what came before an error counts too
            else:
                got.append(await call)
        except grpc.aio.AioRpcError as error:
            return got, error.code(), error.details() or "", list(error.trailing_metadata() or ())
        return got, await call.code(), await call.details(), list(await call.trailing_metadata())


async def test_metadata_goes_both_ways(both: Both) -> None:
    sent = (("plain", "a, b = c"), ("plain", "again"), ("raw-bin", b"\0\1\xff"), ("empty", ""))
    async with both.channel() as channel:
        call = channel.unary_unary("/a.B/echo")(b"x", metadata=sent)
        got = await outcome(call)
        begun = list(await call.initial_metadata())
    assert both.methods.seen == list(sent)
    assert [pair for pair in begun if pair[0] != "grpc-accept-encoding"] == [
        ("begins", "so"),
        ("raw-bin", b"\0\xff"),
    ]
    assert got == ([b"x"], grpc.StatusCode.OK, "", [("ends", "so"), ("raw-bin", b"\xff\0")])


async def test_blanks_around_a_value_are_taken(both: Both) -> None:
    async with both.channel() as channel:
        await outcome(channel.unary_unary("/a.B/echo")(b"x", metadata=(("authorization", "Bearer "),)))
    assert [(name, str(value).strip()) for name, value in both.methods.seen] == [("authorization", "Bearer")]


async def test_a_megabyte_of_metadata_is_refused_and_the_server_serves_on(both: Both) -> None:
    async with both.channel() as channel:
        talk = channel.stream_stream("/a.B/talk")()
        await talk.write(b"a")
        assert await talk.read() == b"aa"
        huge = await outcome(channel.unary_unary("/a.B/echo")(b"", metadata=(("huge", "x" * (1 << 20)),)))
        assert huge[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await talk.write(b"b")
        assert await talk.read() == b"bb"
        assert (await outcome(channel.unary_unary("/a.B/echo")(b"x")))[0] == [b"x"]
        await talk.done_writing()
        assert await talk.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("message", [b"", b"x", LARGE])
async def test_messages_of_all_sizes_come_back(both: Both, message: bytes) -> None:
    async with both.channel(("grpc.max_receive_message_length", -1)) as channel:
        assert (await outcome(channel.unary_unary("/a.B/echo")(message)))[0] == [message]
        assert (await outcome(channel.unary_stream("/a.B/write")(message)))[0] == [message] * 3


async def test_a_status_is_what_the_method_says(both: Both) -> None:
    async with both.channel() as channel:
        failed = await outcome(channel.unary_unary("/a.B/fail")(b"m"))
        was_set = await outcome(channel.unary_unary("/a.B/set")(b""))
        broken = await outcome(channel.unary_unary("/a.B/break_down")(b""))
        missing = await outcome(channel.unary_unary("/a.B/Missing")(b""))
        other = await outcome(channel.unary_unary("/c/D")(b""))
    assert failed == ([], grpc.StatusCode.NOT_FOUND, "none: 100 % ä\nb'm'", [("told", "why")])
    assert was_set[:3] == ([], grpc.StatusCode.DATA_LOSS, "set")
    assert broken[:3] == ([], grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>: 'a bug'")
    assert missing[:3] == other[:3] == ([], grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def test_streams_go_all_ways(both: Both) -> None:
    async with both.channel() as channel:
        counted = await outcome(channel.unary_stream("/a.B/count")(b"2000"))
        assert counted[0] == [b"%d" % number for number in range(2000)]
        parts = [b"a" * 70_000, b"", b"c"] * 5
        assert (await outcome(channel.stream_unary("/a.B/add")(iter(parts))))[0] == [b"".join(parts)]
        talked = await outcome(channel.stream_stream("/a.B/talk")(iter(parts)))
        assert talked[0] == [part * 2 for part in parts]


async def test_many_calls_share_a_connection_and_many_connections_a_server(both: Both) -> None:
    async with both.channel() as one, both.channel() as two:
        calls = [channel.unary_stream("/a.B/count")(b"50") for channel in (one, two) for _ in range(100)]
        ends = await asyncio.gather(*map(outcome, calls))
    assert {(len(end[0]), end[1]) for end in ends} == {(50, grpc.StatusCode.OK)}


async def test_a_client_that_cancels_ends_its_method(both: Both) -> None:
    async with both.channel() as channel:
        call = channel.unary_stream("/a.B/hang")(b"")
        assert await call.read() == b"-1"
        call.cancel()
        async with asyncio.timeout(WAIT_S):
            await both.methods.cancelled.wait()
            await both.methods.called_back.wait()


async def test_a_client_that_is_gone_ends_its_method(both: Both) -> None:
    async with both.channel() as channel:
        call = channel.unary_stream("/a.B/hang")(b"")
        await call.read()
    async with asyncio.timeout(WAIT_S):
        await both.methods.cancelled.wait()
        await both.methods.called_back.wait()


async def test_a_deadline_ends_the_method_and_the_call(both: Both) -> None:
    async with both.channel() as channel:
        got, code, *_ = await outcome(channel.unary_stream("/a.B/hang")(b"", timeout=0.6))
    assert got == [b"1"]
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(WAIT_S):
        await both.methods.called_back.wait()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(both: Both, compression: grpc.Compression) -> None:
    async with both.channel(compression=compression) as channel:
        assert (await outcome(channel.unary_unary("/a.B/echo")(LARGE)))[0] == [LARGE]


async def test_a_message_that_is_too_large_is_refused_also_when_it_is_compressed(both: Both) -> None:
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        async with both.channel(compression=compression) as channel:
            got = await outcome(channel.unary_unary("/a.B/echo")(bytes((8 << 20) + 1)))
        assert got[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in got[2]


async def test_the_blocking_client_is_served(both: Both) -> None:
    def ask() -> list[bytes]:
        with grpc.insecure_channel(both.address) as opened:
            channel: Any = opened  # the stubs want what may be left out
            one = channel.unary_unary("/a.B/echo")
            many = channel.unary_stream("/a.B/count")
            return [one(b"x", timeout=WAIT_S), *many(b"3", timeout=WAIT_S)]

    assert await asyncio.to_thread(ask) == [b"x", b"0", b"1", b"2"]


async def test_a_server_that_stops_lets_calls_end_and_takes_no_more(both: Both) -> None:
    async with both.channel() as channel:
        talk = channel.stream_stream("/a.B/talk")()
        await talk.write(b"a")
        assert await talk.read() == b"aa"
        stopping = asyncio.create_task(both.server.stop(WAIT_S))
        while channel.get_state() is grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await talk.write(b"b")
        assert await talk.read() == b"bb"
        assert not stopping.done()
        await talk.done_writing()
        assert await talk.code() is grpc.StatusCode.OK
        async with asyncio.timeout(WAIT_S):
            await stopping
        assert (await outcome(channel.unary_unary("/a.B/echo")(b"")))[1] is grpc.StatusCode.UNAVAILABLE


async def test_calls_that_outlive_the_grace_are_cancelled(both: Both) -> None:
    async with both.channel() as channel:
        call = channel.unary_stream("/a.B/hang")(b"")
        await call.read()
        await both.server.stop(0.05)
        code = await call.code()
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    async with asyncio.timeout(WAIT_S):  # a client may hear of it first
        await both.methods.cancelled.wait()


async def test_health_is_checked_and_watched(both: Both) -> None:
    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack aio
    health_pb2_grpc.add_HealthServicer_to_server(servicer, both.server)
    serving, not_serving = (
        health_pb2.HealthCheckResponse.ServingStatus.Value(n) for n in ("SERVING", "NOT_SERVING")
    )
    await servicer.set("", serving)
    if both.kind == "grpcio":
        pytest.skip("grpc.aio takes no service once it has begun")
    async with both.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == serving
        await servicer.set("", not_serving)
        assert (await watch.read()).status == not_serving
        watch.cancel()
