"""The receiving sides of KV, each a process: `python -m …micro.kv_peers MODE URL LOAD`."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import nats
import uvloop

from services.cli.bench.micro.kv_load import (
    ALONE,
    ALONE_CHUNK_BYTES,
    CHUNK_BYTES,
    PREFILL_INCARNATION,
    STOCK,
    TCP,
    KvLoad,
    decode_name,
    prefill_name,
)
from services.cli.bench.micro.nats_socket import nats_socket, received
from services.cli.bench.micro.peer_process import greet, hear_nothing, until_stdin_ends
from services.cli.bench.micro.turns import TURN_DEADLINE_S
from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.engine.native.library import library
from shared.kv.memory.plain_pool import PlainPool
from shared.kv.receiving.receiver import KvReceiver
from shared.tasks import cancel_until_done


class ByteCounter(asyncio.BufferedProtocol):
    """Take what comes, and say so each time that a turn's bytes are there."""

    def __init__(self, total_bytes: int) -> None:
        self._memory = memoryview(bytearray(CHUNK_BYTES))
        self._total_bytes = self._left_bytes = total_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        self._left_bytes -= nbytes
        if self._left_bytes == 0:
            self._left_bytes = self._total_bytes
            self._transport.write(b"!")  # type: ignore[attr-defined]  # uvloop's is no instance of asyncio's


async def receive_tcp(load: KvLoad) -> None:
    total_bytes = load.chunks(CHUNK_BYTES) * CHUNK_BYTES
    server = await asyncio.get_running_loop().create_server(lambda: ByteCounter(total_bytes), "127.0.0.1", 0)
    greet(server.sockets[0].getsockname()[1])
    await until_stdin_ends(hear_nothing)


def receive_alone(url: str) -> None:
    connection = nats_socket(url)
    connection.sendall(b"SUB bench.alone 1\r\nPING\r\n")
    received(connection)
    connection.settimeout(None)  # turns of others lie between two of ours
    threading.Thread(target=_count_alone, args=(connection,), daemon=True).start()
    greet("ready")
    sys.stdin.read()


def _count_alone(connection: socket.socket) -> None:
    memory, landed = memoryview(bytearray(1 << 20)), 0
    while nbytes := connection.recv_into(memory):
        landed += nbytes
        while landed >= ALONE_CHUNK_BYTES:
            landed -= ALONE_CHUNK_BYTES
            connection.sendall(b"PUB bench.landed 0\r\n\r\n")


async def receive_stock(url: str) -> None:
    client = await nats.connect(url)

    async def on_chunk(_message: object) -> None:
        await client.publish("bench.ack", b"")

    await client.subscribe("bench.chunks", cb=on_chunk, pending_bytes_limit=1 << 30)
    await client.flush()
    greet("ready")
    await until_stdin_ends(hear_nothing)
    await client.close()


async def receive_kv(url: str, mode: str, load: KvLoad) -> None:
    bus, bulk = await Bus.connect(url, name="decode"), await BulkConnection.connect(url, name="decode")
    name, tables = decode_name(mode), load.tables(mode, 1)
    receiver = KvReceiver(
        bus,
        bulk,
        name,
        1,
        PlainPool(load.layout, load.pool_blocks),
        mode.partition(",")[0],
        on_complete=lambda *_: None,
        on_failed=lambda key, error: print(f"the transfer {key} failed: {error}", file=sys.stderr),
        on_released=lambda _key: None,
    )
    await receiver.start()

    def take(delivery: Delivery) -> None:
        receiver.handle_message(delivery)

    def expect(turn: str) -> None:
        for number, table in enumerate(tables):
            deadline = Deadline.after(TURN_DEADLINE_S)
            receiver.expect_transfer(
                f"{turn}.{number}",
                1,
                "",
                prefill_name(mode),
                PREFILL_INCARNATION,
                [table],
                [0],
                deadline,
            )

    await bus.serve(inbox("decode", name), take)
    running = asyncio.create_task(receiver.run_transfers())
    try:
        greet("ready")
        await until_stdin_ends(expect)
    finally:
        await cancel_until_done(running)
        receiver.close()
        await bulk.close()
        await bus.close()


def receive(mode: str, url: str, load: KvLoad) -> None:
    """Be the receiving side of that mode until stdin ends."""
    if mode == ALONE:
        receive_alone(url)
    elif mode == TCP:
        uvloop.run(receive_tcp(load))
    elif mode == STOCK:
        uvloop.run(receive_stock(url))
    else:
        library()  # what it needs takes a second to load, which is no transfer's
        uvloop.run(receive_kv(url, mode, load))


if __name__ == "__main__":
    receive(sys.argv[1], sys.argv[2], KvLoad.parse(sys.argv[3]))
