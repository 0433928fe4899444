"""The receiving sides of `bench_kv`, a process each: `python -m tests.bench.kv_receivers MODE URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import nats
import uvloop

from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.kv.receiving.receiver import KvReceiver
from tests.bench.kv_modes import (
    ALONE,
    ALONE_CHUNK_BYTES,
    BLOCKS,
    LAYOUT,
    STOCK,
    TCP,
    TCP_CHUNK_BYTES,
    TOTAL_BYTES,
    TRANSFERS,
    connected,
    decode_name,
    prefill_name,
    tables,
)
from tests.support.kv_pair import PlainPool


def say(what: object) -> None:
    print(what, flush=True)


async def receive_tcp() -> None:
    class Counter(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.memory = memoryview(bytearray(TCP_CHUNK_BYTES))
            self.left = TOTAL_BYTES

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)

        def get_buffer(self, _sizehint: int) -> memoryview:
            return self.memory

        def buffer_updated(self, nbytes: int) -> None:
            self.left -= nbytes
            if self.left == 0:
                self.left = TOTAL_BYTES
                self.transport.write(b"!")

    server = await asyncio.get_running_loop().create_server(Counter, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


def receive_alone(url: str) -> None:
    connection = connected(url)
    connection.sendall(b"SUB bench.alone 1\r\nPING\r\n")
    connection.recv(64 << 10)
    say("ready")
    memory, landed = memoryview(bytearray(1 << 20)), 0
    while nbytes := connection.recv_into(memory):
        landed += nbytes
        while landed >= ALONE_CHUNK_BYTES:
            landed -= ALONE_CHUNK_BYTES
            connection.sendall(b"PUB bench.landed 0\r\n\r\n")


async def receive_stock(url: str) -> None:
    client = await nats.connect(url)

    async def on_chunk(message: object) -> None:
        await client.publish("bench.ack", b"")

    await client.subscribe("bench.chunks", cb=on_chunk, pending_bytes_limit=1 << 30)
    await client.flush()
    await client.flush()
    say("ready")
    await asyncio.Event().wait()


async def receive_kv(url: str, mode: str) -> None:
    bus, bulk = await Bus.connect(url, name="decode"), await BulkConnection.connect(url, name="decode")
    name = decode_name(mode)
    receiver = KvReceiver(
        bus,
        bulk,
        name,
        1,
        PlainPool(LAYOUT, BLOCKS * TRANSFERS),
        mode.partition(",")[0],
        on_complete=lambda *_: None,
        on_failed=lambda key, error: say(f"failed {key} {error}"),
        on_released=lambda _key: None,
    )
    await receiver.start()

    def take(delivery: Delivery) -> None:
        receiver.handle_message(delivery)

    await bus.serve(inbox("decode", name), take)
    running = asyncio.create_task(receiver.run_transfers())
    say("ready")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().strip():
        for number, table in enumerate(tables(mode, 1)):
            receiver.expect_transfer(
                f"{line}.{number}", 1, "", prefill_name(mode), 1, [table], [0], Deadline.after(60)
            )
    running.cancel()


def receive(mode: str, url: str) -> None:
    if mode == ALONE:
        receive_alone(url)
    elif mode == TCP:
        uvloop.run(receive_tcp())
    elif mode == STOCK:
        uvloop.run(receive_stock(url))
    else:
        uvloop.run(receive_kv(url, mode))


if __name__ == "__main__":
    receive(*sys.argv[1:])
