"""Calls of gRPC without its core are what they are with it: each test runs on the real server too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.simulation.bus.network import Network
from tests.simulation.edges.grpc_client import MemoryChannel
from tests.simulation.edges.grpc_server import MemoryGrpcServer

WAIT_S = 20.0
SERVICE = "test.Service"
EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


@dataclass
class Served:
    """A server with one method, and what its calls have come to."""

    channel: Any
    server: Any
    metadata: list[Any] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    called_back: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, message: bytes, **how: Any) -> Any:
        return self.channel.unary_stream(
            f"/{SERVICE}/Do", request_serializer=bytes, response_deserializer=bytes
        )(message, **how)


Method = Callable[[Served, bytes, Any], Awaitable[None]]
Serve = Callable[[Method], Awaitable[Served]]


class _AsStream(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Reads messages itself, as the edge does."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None

        async def answer(_: Any, call: Any) -> None:
            await handler.unary_stream(await call.read(), call)

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=bytes)


@pytest.fixture(params=["real", "memory"])
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[Serve]:
    servers = []
    network = Network(Random(0))

    async def begin(method: Method) -> Served:
        real = request.param == "real"
        server: Any = (
            grpc.aio.server(interceptors=[_AsStream()])
            if real
            else MemoryGrpcServer(network, interceptors=[_AsStream()])
        )

        async def do(message: bytes, call: Any) -> None:
            call.add_done_callback(lambda _: served.called_back.set())
            served.metadata = list(call.invocation_metadata())
            try:
                await method(served, message, call)
            except asyncio.CancelledError:
                served.cancelled.set()
                raise

        handlers = {"Do": grpc.unary_stream_rpc_method_handler(do)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_registered_method_handlers(SERVICE, handlers)
        port = server.add_insecure_port("127.0.0.1:0" if real else "server:1")
        await server.start()
        servers.append(server)
        channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}") if real else MemoryChannel("server:1")
        served = Served(channel, server)
        return served

    with network.joined():
        yield begin
        for server in servers:
            await server.stop(None)


async def outcome(call: Any) -> tuple[list[bytes], grpc.StatusCode, str, list[Any]]:
    """What a client has of a call: its messages, code, details and trailing metadata."""
    got: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        try:
            async for message in call:
                got.append(message)  # noqa: PERF401 - what came before an error counts too
        except grpc.aio.AioRpcError as error:
            return got, error.code(), error.details() or "", list(error.trailing_metadata() or ())
    return got, grpc.StatusCode.OK, "", []


async def echo(_: Served, message: bytes, call: Any) -> None:
    for _turn in range(3):
        await call.write(message)


async def hang(_: Served, message: bytes, call: Any) -> None:
    await call.write(message)
    await asyncio.Event().wait()


async def test_messages_come_in_order_and_then_the_end(serve: Serve) -> None:
    served = await serve(echo)
    got, code, *_ = await outcome(served.ask(b"a", metadata=(("name", "one"), ("name", "two"))))
    assert (got, code) == ([b"a"] * 3, grpc.StatusCode.OK)
    assert [value for name, value in served.metadata if name == "name"] == ["one", "two"]
    async with asyncio.timeout(WAIT_S):
        await served.called_back.wait()


async def test_a_status_that_is_set_comes_at_the_end_with_its_metadata(serve: Serve) -> None:
    async def method(_: Served, message: bytes, call: Any) -> None:
        await call.write(message)
        call.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        call.set_details("full")
        call.set_trailing_metadata((("retry", "5"), ("more-bin", b"\0\1")))

    got, code, details, trailing = await outcome((await serve(method)).ask(b"a"))
    assert (got, code, details) == ([b"a"], grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert trailing == [("retry", "5"), ("more-bin", b"\0\1")]


async def test_an_abort_ends_the_call_there(serve: Serve) -> None:
    async def method(_: Served, _message: bytes, call: Any) -> None:
        await call.abort(grpc.StatusCode.NOT_FOUND, "none here", (("a", "b"),))

    assert await outcome((await serve(method)).ask(b"a")) == (
        [],
        grpc.StatusCode.NOT_FOUND,
        "none here",
        [("a", "b")],
    )


async def test_a_fault_of_a_method_is_unknown(serve: Serve) -> None:
    async def method(*_: Any) -> None:
        raise ValueError("broken")

    got, code, details, _ = await outcome((await serve(method)).ask(b"a"))
    assert (got, code) == ([], grpc.StatusCode.UNKNOWN)
    assert details == "Unexpected <class 'ValueError'>: broken"


async def test_a_client_that_cancels_cancels_the_method(serve: Serve) -> None:
    served = await serve(hang)
    call = served.ask(b"a")
    async with asyncio.timeout(WAIT_S):
        assert await call.read() == b"a"
        call.cancel()
        await served.cancelled.wait()
        await served.called_back.wait()


async def test_a_deadline_ends_both_ends(serve: Serve) -> None:
    served = await serve(hang)
    _, code, *_ = await outcome(served.ask(b"a", timeout=0.2))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(WAIT_S):
        await served.cancelled.wait()
        await served.called_back.wait()


async def test_a_method_knows_how_long_its_client_waits(serve: Serve) -> None:
    async def method(_: Served, message: bytes, call: Any) -> None:
        remaining_s = call.time_remaining()
        await call.write(
            b"none" if remaining_s is None else b"some" if 0 < remaining_s < 2 * WAIT_S else b"bad"
        )

    served = await serve(method)
    assert (await outcome(served.ask(b"a")))[0] == [b"none"]
    assert (await outcome(served.ask(b"a", timeout=WAIT_S)))[0] == [b"some"]


async def test_a_method_that_there_is_not_is_unimplemented(serve: Serve) -> None:
    served = await serve(echo)
    other = served.channel.unary_stream(
        f"/{SERVICE}/Other", request_serializer=bytes, response_deserializer=bytes
    )
    got, code, *_ = await outcome(other(b"a"))
    assert (got, code) == ([], grpc.StatusCode.UNIMPLEMENTED)


async def test_a_server_that_stops_lets_calls_end_and_cancels_the_others(serve: Serve) -> None:
    served = await serve(hang)
    call = served.ask(b"a")
    async with asyncio.timeout(WAIT_S):
        assert await call.read() == b"a"
        await served.server.stop(0.05)
        await served.cancelled.wait()
    _, code, *_ = await outcome(served.ask(b"b", timeout=5.0))
    assert code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


async def test_nothing_is_written_after_the_end(serve: Serve) -> None:
    raised: asyncio.Queue[BaseException] = asyncio.Queue()

    async def method(_: Served, message: bytes, call: Any) -> None:
        try:
            await call.write(message)  # whose end the cancel may overtake
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await call.write(message)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                raised.put_nowait(error)
            raise

    call = (await serve(method)).ask(b"a")
    async with asyncio.timeout(WAIT_S):
        assert await call.read() == b"a"
        call.cancel()
        assert isinstance(await raised.get(), grpc.aio.InternalError)
