"""The gRPC edge takes in a bounded number of calls and connections for a bounded time; the rest hears why."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.config import GatewayConfig
from services.gateway.grpc import edge_intake, edge_server, idle_connections, wide_server
from services.gateway.grpc.edge_intake import GENERATE
from shared.tasks import cancel_until_done
from tests.integration.gateway_peers import Running, ask, fleet, gateway
from tests.support.wait import until

TIMEOUT_S = 60
OWN_POOL = (("grpc.use_local_subchannel_pool", 1),)
"""Each channel has a connection of its own: gRPC shares those of channels that look alike."""


@asynccontextmanager
async def channels(running: Running, count: int) -> AsyncIterator[list[grpc.aio.Channel]]:
    async with AsyncExitStack() as held:
        made = [
            await held.enter_async_context(
                grpc.aio.insecure_channel(running.server.address, options=OWN_POOL)
            )
            for _ in range(count)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in made))
        yield made


class _Readers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """A method that reads all, and one that reads nothing while `hold` is not set."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def read_all(messages: AsyncIterator[bytes], _call: Any) -> AsyncIterator[bytes]:
            async for _ in messages:
                pass
            yield b"read"

        async def read_nothing(_messages: AsyncIterator[bytes], _call: Any) -> AsyncIterator[bytes]:
            await self.hold.wait()
            yield b""

        reads = details.method == "/test/all"
        return grpc.stream_stream_rpc_method_handler(read_all if reads else read_nothing)


async def test_a_message_that_nobody_reads_is_not_taken_in_however_fast_its_connection_is() -> None:
    readers, piece = _Readers(), b"x" * 4096
    server = grpc.aio.server(options=edge_server._options(GatewayConfig()))
    server.add_generic_rpc_handlers((readers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_POOL) as opened:
            channel: Any = opened  # the stubs want what may be left out
            call = channel.stream_stream("/test/all")()
            for _ in range(60):
                await call.write(bytes(1 << 20))
            await call.done_writing()
            assert await call.read() == b"read"
            call, sent = channel.stream_stream("/test/nothing")(), 0
            with suppress(TimeoutError):
                while sent <= 2 * edge_server.MAX_UNREAD_BYTES:  # some of it waits at the client
                    async with asyncio.timeout(0.5):
                        await call.write(piece)
                    sent += len(piece)
            call.cancel()
        assert sent <= 2 * edge_server.MAX_UNREAD_BYTES
    finally:
        readers.hold.set()
        await server.stop(None)


async def ending(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    """How a request on it fails."""
    try:
        async for _ in rpc.InferenceStub(channel).Generate(ask(), timeout=TIMEOUT_S):
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the request finished")


def retry_ms(error: grpc.aio.AioRpcError) -> int:
    """When it may come back, 0 where the status does not say."""
    metadata: Any = error.trailing_metadata()  # the stubs have it wrong
    for name, packed in metadata or ():
        if name == "grpc-status-details-bin":
            retry = RetryInfo()
            assert Status.FromString(packed).details[0].Unpack(retry)
            return int(retry.retry_delay.ToMilliseconds())
    return 0


async def test_calls_beyond_what_may_wait_unread_hear_when_to_come_back(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many more calls come at once than gRPC would keep for us, and none ends without a word of ours."""
    monkeypatch.setattr(edge_server, "MAX_UNREAD_CALLS", 100)
    monkeypatch.setattr(edge_intake, "MAX_CALLS_BEFORE_ADMISSION", 20)
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url, max_sessions=1, max_text_calls=1) as running,
        channels(running, 4) as made,
    ):
        await running.knows("decode", 1)
        live = asyncio.create_task(ending(made[0]))
        await peers.placed()
        errors = await asyncio.gather(*(ending(made[number % 4]) for number in range(1000)))
        await cancel_until_done(live)
    assert Counter(error.code().name for error in errors) == {"RESOURCE_EXHAUSTED": 1000}
    assert all(retry_ms(error) > 0 for error in errors)


async def turns_for(running: Running, calls: int) -> int:
    """How many turns of the loop it takes to refuse so many calls, where each turn takes a while."""
    turns = 0

    async def be_busy() -> None:
        nonlocal turns
        while True:
            turns += 1
            time.sleep(0.001)  # noqa: ASYNC251 - the work of others, for whose turns everything waits
            await asyncio.sleep(0)

    busy = asyncio.create_task(be_busy())
    errors = await asyncio.gather(*(ending(running.channel) for _ in range(calls)))
    await cancel_until_done(busy)
    assert Counter(error.code().name for error in errors) == {"RESOURCE_EXHAUSTED": calls}
    return turns


@pytest.mark.thorough
async def test_a_busy_loop_takes_up_many_calls_in_a_turn(nats_url: str) -> None:
    """A call is four events of gRPC and as many at its client, and the library hands on one in a turn."""
    async with fleet(nats_url) as peers, gateway(nats_url, max_sessions=1, grpc_server="grpcio") as running:
        await running.knows("decode", 1)
        live = asyncio.create_task(ending(running.channel))
        await peers.placed()
        assert await turns_for(running, 400) < 2 * 400
        await cancel_until_done(live)


async def test_a_library_with_other_names_inside_is_used_as_it_is(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wide_server, "_LEANED_ON", ("a_name_of_another_version",))
    async with gateway(nats_url, grpc_server="grpcio") as running:
        assert await answers(rpc.InferenceStub(running.channel))
    assert "grpc_intake_narrow" in capsys.readouterr().out


async def unsent(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    """A request whose message does not come."""
    method: Any = channel.stream_stream  # its stub wants what may be left out
    begun: grpc.aio.StreamStreamCall[bytes, bytes] = method(GENERATE)(timeout=TIMEOUT_S)
    await begun.wait_for_connection()
    return begun


async def how_it_ends(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> grpc.StatusCode:
    """Its status, which comes behind its events."""
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code()


async def test_a_call_whose_message_does_not_come_ends(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_intake, "MESSAGE_TIMEOUT_S", 0.2)
    async with gateway(nats_url) as running:
        call = await unsent(running.channel)
        assert await how_it_ends(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.details() == "gateway: the message did not come within 0.2 s: send it faster"


async def test_calls_whose_message_does_not_come_are_bounded_and_health_is_not_among_them(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_intake, "MAX_CALLS_BEFORE_ADMISSION", 1)
    async with (
        gateway(nats_url, max_sessions=1, max_text_calls=1) as running,
        channels(running, 2) as (held, other),
    ):
        calls = [await unsent(held) for _ in range(3)]
        stub = rpc.InferenceStub(other)

        await until(lambda: running.server._intake._open[True] == 3)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(pb.ListModelsRequest())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_ms(caught.value) > 0
        health = await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        calls[0].cancel()
        await until(lambda: answers(stub))


async def answers(stub: rpc.InferenceStub) -> bool:
    with suppress(grpc.aio.AioRpcError):
        await stub.ListModels(pb.ListModelsRequest())
        return True
    return False


async def test_a_call_without_a_message_is_its_clients_error(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        call = await unsent(running.channel)
        await call.done_writing()
        assert await how_it_ends(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert "no message" in (await call.details() or "")


# ---- connections ------------------------------------------------------------------------------------------


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the other side to close the connection."""
    async with asyncio.timeout(TIMEOUT_S):
        with suppress(ConnectionResetError):
            while await reader.read(4096):
                pass
    return True


@asynccontextmanager
async def silent(address: str) -> AsyncIterator[asyncio.StreamReader]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_connection_counts_from_accept_on(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said nothing, and the next is closed at once."""
    monkeypatch.setattr(idle_connections, "SETTLED_S", 3600.0)
    async with (
        gateway(nats_url, grpc_max_connections=1) as running,
        silent(running.server.address) as first,
        silent(running.server.address) as second,
    ):
        assert await closed(second)
        assert not first.at_eof()


async def test_a_connection_that_does_not_say_what_it_is_is_closed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_server, "HANDSHAKE_TIMEOUT_MS", 200)
    async with gateway(nats_url) as running, silent(running.server.address) as reader:
        assert await closed(reader)


async def test_a_connection_without_a_call_is_asked_to_go(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_server, "IDLE_CONNECTION_MS", 200)
    async with gateway(nats_url) as running, channels(running, 1) as (channel,):
        state = channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await asyncio.wait_for(channel.wait_for_state_change(state), TIMEOUT_S)
            state = channel.get_state()
        assert await answers(rpc.InferenceStub(channel))  # it connects again by itself


@pytest.mark.thorough(but="127.0.0.1")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_connections_without_a_call_make_room_and_one_with_a_call_stays(
    nats_url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that watches health, which needs no key."""
    monkeypatch.setattr(idle_connections, "LOOK_S", 0.02)
    monkeypatch.setattr(idle_connections, "SETTLED_S", 0.0)
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url, grpc_max_connections=4, grpc_host=host.strip("[]")) as running,
        AsyncExitStack() as held,
    ):
        await running.knows("decode", 1)
        live = asyncio.create_task(ending(running.channel))
        await peers.placed()
        (watching,) = await held.enter_async_context(channels(running, 1))
        watch = health_pb2_grpc.HealthStub(watching).Watch(health_pb2.HealthCheckRequest())
        assert await watch.read()
        for _ in range(6):  # each stays, idle
            (channel,) = await held.enter_async_context(channels(running, 1))
        assert await answers(rpc.InferenceStub(channel))
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
        assert not live.done()
        await cancel_until_done(live)


async def test_a_message_of_too_many_parts_is_refused_before_it_is_read(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes of empty parts would hold up everybody's tokens while they are read."""
    read: list[bytes] = []
    really_read = edge_intake._read

    def noted(raw: bytes, reader: Any, kind: Any) -> Any:
        def note(each: bytes) -> Any:
            read.append(each)
            return reader(each)

        return really_read(raw, note, kind)

    monkeypatch.setattr(edge_intake, "_read", noted)
    empty = pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage()] * 20_001))
    async with gateway(nats_url) as running:
        with pytest.raises(grpc.aio.AioRpcError, match="more than 20000 parts") as refused:
            async for _ in rpc.InferenceStub(running.channel).Generate(empty):
                pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not read
