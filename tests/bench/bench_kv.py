"""KV throughput over `nats` and `shm`, against stock nats-py and raw TCP: `python -m tests.bench.bench_kv`.

Sender and receiver are two processes on this machine, all with uvloop and 256 KB chunks, taking turns
in one run; the ratios matter, the absolute figures belong to the machine. A transfer is the KV of a
2048-token prompt of a 0.5 B model (24 layers, 8 KB per layer and block).
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

import nats
import uvloop

from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.kv.limits import CHUNK_BYTES
from shared.kv.receiver import KvReceiver
from shared.kv.sender import KvSender
from shared.kv.shared_pool import SharedPool
from tests.support.kv_pair import PlainLayout, PlainPool

LAYOUT = PlainLayout(24, 8192)
BLOCKS = 128
TRANSFERS = 4
TOTAL_BYTES = TRANSFERS * BLOCKS * LAYOUT.num_layers * LAYOUT.layer_block_bytes
ROUNDS = 3
STOCK_WINDOW_CHUNKS = 16
MODES = ("tcp", "stock nats-py", "nats", "nats, scattered blocks", "shm")


# ---- receiving processes ---------------------------------------------------------------------------


async def receive_tcp(_url: str) -> None:
    class Counter(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.memory = memoryview(bytearray(CHUNK_BYTES))
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


async def receive_stock(url: str) -> None:
    client = await nats.connect(url)

    async def on_chunk(message: object) -> None:
        await client.publish("bench.ack", b"")

    await client.subscribe("bench.chunks", cb=on_chunk, pending_bytes_limit=1 << 30)
    await client.flush()
    await client.flush()
    say("ready")
    await asyncio.Event().wait()


async def receive_kv(url: str, *, transport: str, scattered: bool) -> None:
    bus, bulk = await Bus.connect(url, name="decode"), await BulkConnection.connect(url, name="decode")
    receiver = KvReceiver(
        bus,
        bulk,
        "decode-0",
        1,
        PlainPool(LAYOUT, BLOCKS * TRANSFERS),
        transport,
        on_complete=lambda *_: None,
        on_failed=lambda key, error: say(f"failed {key} {error}"),
        on_released=lambda _key: None,
    )
    await receiver.start()

    def take(delivery: Delivery) -> None:
        receiver.handle_message(delivery)

    await bus.serve(inbox("decode", "decode-0"), take)
    running = asyncio.create_task(receiver.run_transfers())
    say("ready")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().strip():
        for number in range(TRANSFERS):
            blocks = list(range(number * BLOCKS, (number + 1) * BLOCKS))
            if scattered:
                random.Random(number).shuffle(blocks)
            receiver.expect_transfer(
                f"{line}.{number}", 1, "", "prefill-0", 1, blocks, 0, BLOCKS, Deadline.after(60)
            )
    running.cancel()


def say(what: object) -> None:
    print(what, flush=True)


# ---- the sending process ----------------------------------------------------------------------------


async def tcp_round(port: int) -> Callable[[int], Awaitable[None]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = memoryview(os.urandom(CHUNK_BYTES))

    async def once(_round: int) -> None:
        for _ in range(TOTAL_BYTES // CHUNK_BYTES):
            writer.write(body)
            await writer.drain()
        await reader.readexactly(1)

    return once


async def stock_round(url: str) -> Callable[[int], Awaitable[None]]:
    client = await nats.connect(url)
    closing.append(client.close)
    window = asyncio.Semaphore(STOCK_WINDOW_CHUNKS)

    async def on_ack(_message: object) -> None:
        window.release()

    await client.subscribe("bench.ack", cb=on_ack)
    body = os.urandom(CHUNK_BYTES)

    async def once(_round: int) -> None:
        for _ in range(TOTAL_BYTES // CHUNK_BYTES):
            await window.acquire()
            await client.publish("bench.chunks", body)
        for _ in range(STOCK_WINDOW_CHUNKS):
            await window.acquire()
        for _ in range(STOCK_WINDOW_CHUNKS):
            window.release()

    return once


async def kv_round(url: str, child: asyncio.subprocess.Process) -> Callable[[int], Awaitable[None]]:
    bus, bulk = await Bus.connect(url, name="prefill"), await BulkConnection.connect(url, name="prefill")
    blocks = BLOCKS * TRANSFERS
    shared = SharedPool.create(LAYOUT.num_layers * LAYOUT.layer_block_bytes * blocks)
    pool = PlainPool(LAYOUT, blocks, shared.memory)
    pool.memory[:] = os.urandom(1 << 20) * (pool.memory.nbytes >> 20)
    released = asyncio.Semaphore(0)
    sender = KvSender(
        bus,
        bulk,
        pool,
        shared,
        on_released=lambda _key: released.release(),
        on_failed=lambda key, error: print("failed", key, error),
    )

    def take(delivery: Delivery) -> None:
        sender.handle_message(delivery)

    await bus.serve(inbox("prefill", "prefill-0"), take)
    background.append(asyncio.create_task(sender.run_transfers()))
    closing.extend((bulk.close, bus.close))
    assert child.stdin is not None
    stdin = child.stdin

    async def once(number: int) -> None:
        for transfer in range(TRANSFERS):
            request = f"bench-{number}.{transfer}"
            table = range(transfer * BLOCKS, (transfer + 1) * BLOCKS)
            sender.offer_transfer(request, 1, "", "decode-0", table, Deadline.after(60))
            for layer in range(LAYOUT.num_layers):
                sender.layer_ready((request, 1), layer, 0, BLOCKS)
            sender.finish_transfer((request, 1), [1], "")
        stdin.write(f"bench-{number}\n".encode())
        for _ in range(TRANSFERS):
            await asyncio.wait_for(released.acquire(), 60)

    return once


background: list[asyncio.Task[None]] = []
closing: list[Callable[[], Awaitable[None]]] = []


async def measure(mode: str, url: str) -> float:
    """MB/s of the median round, after one to warm up."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.bench_kv",
        mode,
        url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        greeting = (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()
        if mode == "tcp":
            once = await tcp_round(int(greeting))
        elif mode.startswith("stock"):
            once = await stock_round(url)
        else:
            once = await kv_round(url, child)
        seconds = []
        for number in range(ROUNDS + 1):
            start = time.perf_counter()
            await once(number)
            seconds.append(time.perf_counter() - start)
        return TOTAL_BYTES / 1e6 / statistics.median(seconds[1:])
    finally:
        child.kill()
        await child.wait()
        for task in background:
            task.cancel()
        background.clear()
        for close in closing:
            await close()
        closing.clear()


async def compare() -> None:
    server = NatsServer()
    await server.start()
    print(
        f"{TRANSFERS} transfers, {TOTAL_BYTES / 1e6:.0f} MB per round, median of {ROUNDS}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    try:
        speeds = {mode: await measure(mode, server.url) for mode in MODES}
    finally:
        await server.stop()
    for mode, speed in speeds.items():
        print(
            f"{mode:24} {speed:8.0f} MB/s   {speed / speeds['tcp']:5.2f} x tcp   "
            f"{speed / speeds['stock nats-py']:5.2f} x stock nats-py"
        )


async def receive(mode: str, url: str) -> None:
    if mode == "tcp":
        await receive_tcp(url)
    elif mode.startswith("stock"):
        await receive_stock(url)
    else:
        await receive_kv(url, transport="shm" if mode == "shm" else "nats", scattered="scattered" in mode)


if __name__ == "__main__":
    uvloop.run(receive(*sys.argv[1:3]) if len(sys.argv) == 3 else compare())
