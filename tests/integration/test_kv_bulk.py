"""The bulk connection against a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shared.bus.bulk import BulkConnection
from shared.bus.nats_server import NatsServer
from shared.errors import InvalidRequest, TooLarge, Unavailable
from tests.support.wait import until

SUBJECT = "penstock.kv.decode-0.1"


class Sink:
    header_bytes = 4

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._memory = bytearray()

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        if header != b"head":
            return None
        self._memory = bytearray(body_bytes)
        half = body_bytes // 2
        return [memoryview(self._memory)[:half], memoryview(self._memory)[half:]]

    def done(self) -> None:
        self.bodies.append(bytes(self._memory))

    def lost(self) -> None:
        self._memory = bytearray()


async def test_bodies_of_all_sizes_arrive_in_order(nats_url: str) -> None:
    sender = await BulkConnection.connect(nats_url, name="a")
    receiver = await BulkConnection.connect(nats_url, name="b")
    sink = Sink()
    await receiver.serve(SUBJECT, sink)
    sizes = [1, 0, 100, 16_384, 300_000, sender.max_payload - 4, 5]
    for number, size in enumerate(sizes):
        body = bytes((number,)) * size
        await sender.send(SUBJECT, b"head", [memoryview(body)[: size // 3], memoryview(body)[size // 3 :]])
        await sender.send(SUBJECT, b"junk", [memoryview(body)])
    await until(lambda: len(sink.bodies) == len(sizes))
    assert sink.bodies == [bytes((number,)) * size for number, size in enumerate(sizes)]
    await sender.close()
    await receiver.close()


async def test_one_connection_can_send_to_itself_in_both_directions(nats_url: str) -> None:
    connection = await BulkConnection.connect(nats_url, name="a")
    sink = Sink()
    await connection.serve(SUBJECT, sink)
    body = memoryview(bytes(500_000))
    await asyncio.gather(*[connection.send(SUBJECT, b"head", [body]) for _ in range(20)])
    await until(lambda: len(sink.bodies) == 20)
    await connection.close()


async def test_a_body_over_max_payload_is_refused_and_the_connection_lives(nats_url: str) -> None:
    connection = await BulkConnection.connect(nats_url, name="a")
    sink = Sink()
    await connection.serve(SUBJECT, sink)
    with pytest.raises(TooLarge, match="max_payload"):
        await connection.send(SUBJECT, b"head", [memoryview(bytes(connection.max_payload))])
    await connection.send(SUBJECT, b"head", [memoryview(b"ok")])
    await until(lambda: sink.bodies == [b"ok"])
    await connection.close()


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "a.*", "a.>", ".a"])
async def test_a_subject_that_could_break_the_protocol_is_refused(nats_url: str, subject: str) -> None:
    connection = await BulkConnection.connect(nats_url, name="a")
    with pytest.raises(InvalidRequest):
        await connection.send(subject, b"head", [])
    await connection.close()


async def test_a_message_with_nats_headers_is_counted_and_skipped(nats_url: str) -> None:
    connection = await BulkConnection.connect(nats_url, name="a")
    sink = Sink()
    await connection.serve(SUBJECT, sink)
    await connection._client.publish(SUBJECT, b"headbody", headers={"a": "b"})
    await connection.send(SUBJECT, b"head", [memoryview(b"ok")])
    await until(lambda: sink.bodies == [b"ok"])
    await until(lambda: connection.strays == 1)
    await connection.close()


async def test_after_a_server_restart_chunks_flow_again(nats_server: NatsServer) -> None:
    sender = await BulkConnection.connect(nats_server.url, name="a")
    receiver = await BulkConnection.connect(nats_server.url, name="b")
    sink = Sink()
    reconnects: list[int] = []
    receiver.on_reconnect(lambda: reconnects.append(1))
    await receiver.serve(SUBJECT, sink)
    await nats_server.kill()
    await until(lambda: not sender.connected)
    with pytest.raises(Unavailable):
        await sender.send(SUBJECT, b"head", [memoryview(b"lost")])
    await nats_server.start()
    await until(lambda: sender.connected and reconnects)
    await sender.send(SUBJECT, b"head", [memoryview(b"ok")])
    await until(lambda: sink.bodies == [b"ok"])
    await sender.close()
    await receiver.close()


async def test_no_server_is_unavailable_within_bounds(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.bulk.FIRST_CONNECT_S", 0.3)
    await nats_server.kill()
    with pytest.raises(Unavailable, match="nats-server"):
        await BulkConnection.connect(nats_server.url, name="a")
