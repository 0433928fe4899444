"""What a server does not take, and what it says then, on a real nats-server and in memory."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest

from shared.bus import Bus
from shared.bus.connection import Connection
from shared.bus.subjects import inbox
from shared.errors import TooLarge
from shared.messages import Cancel
from tests.simulation.bus import ServerSettings
from tests.simulation.buses import EitherBus
from tests.simulation.clients import Ear, Told, raw, told
from tests.simulation.conftest import StartBus
from tests.support.wait import until

SMALL = ServerSettings(max_payload_bytes=1000)


async def test_the_server_says_how_long_a_message_may_be(start_bus: StartBus) -> None:
    bus = await start_bus(SMALL)
    async with told(bus.url) as client:
        ear = await client.hear("a")
        assert client.client.max_payload == 1000
        await client.say("a", b"x" * 1000, b"")
        assert ear.data == [b"x" * 1000, b""]
        with pytest.raises(nats.errors.MaxPayloadError):
            await client.client.publish("a", b"x" * 1001)


async def test_a_payload_over_the_limit_ends_the_connection(start_bus: StartBus) -> None:
    bus = await start_bus(SMALL)
    async with raw(bus.url, name="raw") as client:
        client.say(b"PUB a 1001\r\n")
        assert await client.rest() == [b"-ERR 'Maximum Payload Violation'"]


async def test_headers_count_towards_the_limit_and_close_a_client_for_good(start_bus: StartBus) -> None:
    bus = await start_bus(SMALL)
    async with told(bus.url) as client:
        await client.client.publish("a", b"x" * 1000, headers={"k": "v"})
        await until(lambda: client.client.is_closed and "closed" in client.events)
        assert client.events == ["disconnected", "closed"]
        assert str(client.client.last_error) == "nats: maximum payload violation"


async def test_our_connection_refuses_before_the_server_does(start_bus: StartBus) -> None:
    bus = await start_bus(SMALL)
    ours = await Bus.connect(bus.url, name="ours")
    try:
        with pytest.raises(TooLarge, match="max_payload of 1000"):
            await ours.publish(inbox("decode", "decode-0"), Cancel("x" * 2000))
        await ours.flush()
        assert ours.connected
    finally:
        await ours.close()


async def test_a_connection_that_the_server_closes_for_good_is_lost(start_bus: StartBus) -> None:
    bus = await start_bus(SMALL)
    ours = await Connection.open(bus.url, name="ours")
    await ours.client.publish("a", b"x" * 1000, headers={"k": "v"})
    async with asyncio.timeout(20):
        await ours.lost.wait()
    assert not ours.connected
    await ours.close()


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"HELLO\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"GET / HTTP/1.1\r\n\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"X", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"PUBLISH a 1\r\nx\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"PUB a 1\r\nxyz\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"PUB a\r\n", []),
        (b"PUB a b c 1\r\n", []),
        (b"PUB a -1\r\n", []),
        (b"PUB a x\r\n", []),
        (b"HPUB a 5 3\r\n", []),
        (b"SUB a\r\n", []),
        (b"SUB a b c d\r\n", []),
        (b"UNSUB\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"UNSUB 1 2 3\r\n", []),
        (b"PUB " + b"a" * 4096 + b" 1\r\n", [b"-ERR 'maximum control line exceeded'"]),
        (b"SUB " + b"a" * 5000, [b"-ERR 'maximum control line exceeded'"]),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
async def test_what_is_no_protocol_ends_the_connection(
    bus: EitherBus, said: bytes, answer: list[bytes]
) -> None:
    async with raw(bus.url, name="raw") as client:
        await client.pong()
        client.say(said)
        assert await client.rest() == answer


async def test_operations_are_read_in_any_case_with_any_spaces(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"sub  a \t 1\r\nPub\ta  1\r\nx\r\npub a 1\nx\r\nping\r\n")
        assert await client.line() == b"MSG a 1 1"
        assert await client.line() == b"x"
        assert await client.line() == b"MSG a 1 1"
        assert await client.line() == b"x"
        assert await client.line() == b"PONG"


async def test_who_is_verbose_gets_an_ok_for_everything(bus: EitherBus) -> None:
    async with raw(bus.url, verbose=True) as client:
        client.say(b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\n")
        assert await client.pong() == [b"+OK", b"+OK", b"+OK", b"MSG a 1 1", b"x", b"+OK"]


async def test_bytes_may_come_in_any_pieces(bus: EitherBus) -> None:
    said = b"SUB a 1\r\nPUB a in 5\r\nx\r\ny\n\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    async with raw(bus.url, name="raw") as client:
        for at in range(len(said)):
            client.say(said[at : at + 1])
            await asyncio.sleep(0)
        assert await client.pong() == [
            b"MSG a 1 in 5", b"x", b"y", b"", b"HMSG a 1 12 14", b"NATS/1.0", b"", b"hi",
        ]  # fmt: skip


# ---- slow readers -------------------------------------------------------------------------------------


async def test_a_slow_callback_loses_what_is_over_its_limit_of_messages(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as mouth:
        go_on, heard = asyncio.Event(), []

        async def slow(message: object) -> None:
            await go_on.wait()
            heard.append(message)

        await client.client.subscribe("a", cb=slow, pending_msgs_limit=5)
        await client.settle()
        await mouth.say("a", *[b"x"] * 20)
        await until(lambda: client.errors)
        go_on.set()
        await until(lambda: len(heard) + len(client.errors) == 20)
        assert len(heard) in (5, 6), "five in the queue, and perhaps one in hand"
        assert all("slow consumer" in error for error in client.errors)
        assert client.client.is_connected


async def test_a_slow_callback_loses_what_is_over_its_limit_of_bytes(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as mouth:
        go_on, heard = asyncio.Event(), []

        async def slow(message: object) -> None:
            await go_on.wait()
            heard.append(message)

        await client.client.subscribe("a", cb=slow, pending_bytes_limit=300)
        await client.settle()
        await mouth.say("a", *[b"x" * 100] * 9)
        await until(lambda: client.errors)
        go_on.set()
        await until(lambda: len(heard) + len(client.errors) == 9)
        assert len(heard) in (2, 3, 4)


async def flood_until_gone(mouth: Told, ear: Ear) -> int:
    """Send to who does not read until the server has given it up; return how much that was.

    One at a time: for who reads, however slowly, never more waits than the server keeps.
    """
    count = 0
    while count < 200:
        await mouth.say("flood", b"x" * 500_000)
        count += 1
        assert len(await ear.has(count)) == count
        if await unheard(mouth):
            return count
    raise AssertionError("the server keeps everything")


@pytest.mark.parametrize(
    "settings",
    [ServerSettings(max_pending_bytes=1 << 20), ServerSettings(write_deadline_s=1)],
    ids=["too much waits", "too long"],
)
async def test_who_does_not_read_is_dropped_and_nobody_else_notices(
    start_bus: StartBus, settings: ServerSettings
) -> None:
    bus = await start_bus(settings)
    async with raw(bus.url, name="deaf") as deaf, told(bus.url) as mouth, told(bus.url) as other:
        deaf.say(b"SUB flood 1\r\nSUB deaf 2\r\n")
        await deaf.pong()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a reading transport too
        ear = await other.hear("flood", pending_bytes_limit=1 << 30)
        if settings.write_deadline_s == 1:
            await mouth.say("flood", *[b"x" * 1_000_000] * 16)
            await until(lambda: unheard(mouth))
        else:
            await flood_until_gone(mouth, ear)
        assert mouth.client.is_connected
        assert other.client.is_connected
        assert other.events == []


async def unheard(mouth: Told) -> bool:
    """Return whether the deaf client is gone from the server."""
    try:
        await mouth.client.request("deaf", timeout=0.05)
    except nats.errors.NoRespondersError:
        return True
    except nats.errors.TimeoutError:
        return False
    return False
