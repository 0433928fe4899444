"""Messages are written without a task in between where the socket has room, and else as nats-py does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from nats.aio.client import Client

from shared.bus.client import BusClient

PENDING_BYTES = 100


class Socket:
    """Notes what is written to it; `unsent` bytes are still to be taken by the server."""

    def __init__(self) -> None:
        self.transport = self
        self.written: list[bytes] = []
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.written.append(b"".join(lines))


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
async def client(socket: Socket) -> BusClient:
    client = BusClient()
    client._status = Client.CONNECTED
    client._max_payload, client._max_pending_size = 50, PENDING_BYTES
    client._transport = SimpleNamespace(_io_writer=socket)  # type: ignore[assignment]
    client._flush_queue = asyncio.Queue()
    return client


async def test_what_is_sent_in_one_turn_of_the_loop_is_written_at_once(
    client: BusClient, socket: Socket
) -> None:
    assert client.send_now("a.b", b"one", "inbox")
    assert client.send_now("a.c", b"")
    assert socket.written == []
    await asyncio.sleep(0)
    assert socket.written == [b"PUB a.b inbox 3\r\none\r\nPUB a.c  0\r\n\r\n"]
    assert (client.pending_data_size, client.stats["out_msgs"], client.stats["out_bytes"]) == (0, 2, 3)


async def test_behind_what_the_server_has_not_taken_it_is_left_to_the_task(
    client: BusClient, socket: Socket
) -> None:
    socket.unsent = 1
    assert client.send_now("a.b", b"one")
    await asyncio.sleep(0)
    assert socket.written == []
    assert client._flush_queue is not None
    assert client._flush_queue.qsize() == 1
    assert client.pending_data_size > 0


async def test_a_connection_that_is_lost_meanwhile_keeps_it(client: BusClient, socket: Socket) -> None:
    assert client.send_now("a.b", b"one")
    client._status = Client.RECONNECTING
    await asyncio.sleep(0)
    assert socket.written == []
    assert client.pending_data_size > 0
    assert not client.send_now("a.b", b"two")


@pytest.mark.parametrize(
    ("subject", "data", "reply"),
    [
        ("a b", b"", ""),
        ("a\r\nPUB c", b"", ""),
        ("", b"", ""),
        ("a", b"", "in box"),
        ("a", b"x" * 51, ""),
    ],
    ids=["blank", "a command", "none", "blank reply", "too long"],
)
async def test_what_is_no_message_is_left_to_publish(
    client: BusClient, subject: str, data: bytes, reply: str
) -> None:
    assert not client.send_now(subject, data, reply)
    assert client.pending_data_size == 0


async def test_what_has_to_wait_for_room_is_left_to_publish(client: BusClient) -> None:
    client._pending_data_size = PENDING_BYTES - 3
    assert not client.send_now("a", b"xyz")
    assert client.send_now("a", b"xy")
