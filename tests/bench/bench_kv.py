"""KV throughput over `nats` and `shm`, against raw TCP and memcpy: `python -m tests.bench.bench_kv [TURNS]`.

Sender and receiver are two processes on this machine, with uvloop. All modes stay connected and take turns,
because other load comes and goes; the ratios matter, the absolute figures belong to the machine. CPU time is
what each side and the server ran: on a busy machine it says more than the clock. A transfer is the KV of a
2048-token prompt of a 0.5 B model (24 layers, 8 KB per layer and block).

`nats-server alone` is the most that can be had of it: a plain blocking socket to the server, another from it,
nothing computed or looked at. `memcpy` is the same bytes from pool to pool within one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import nats
import numpy as np
import uvloop

from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.kv.limits import WINDOW_BYTES
from shared.kv.memory.shared_pool import SharedPool
from shared.kv.sending.sender import KvSender
from tests.bench.kv_modes import (
    ALONE,
    ALONE_CHUNK_BYTES,
    BLOCKS,
    LAYOUT,
    MEMCPY,
    MODES,
    STOCK,
    STOCK_CHUNK_BYTES,
    STOCK_WINDOW_CHUNKS,
    TCP,
    TCP_CHUNK_BYTES,
    TOTAL_BYTES,
    TRANSFERS,
    connected,
    decode_name,
    prefill_name,
    tables,
)
from tests.bench.process_cost import threads_cpu_s
from tests.support.kv_pair import PlainPool

TURNS = 9

Once = Callable[[int], Awaitable[None]]
"""One turn of a mode: moves TOTAL_BYTES and returns when they are there."""


async def tcp_turn(port: int) -> Once:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = memoryview(os.urandom(TCP_CHUNK_BYTES))

    async def once(_turn: int) -> None:
        for _ in range(TOTAL_BYTES // TCP_CHUNK_BYTES):
            writer.write(body)
            await writer.drain()
        await reader.readexactly(1)

    return once


async def alone_turn(url: str) -> Once:
    connection = connected(url)
    connection.sendall(b"SUB bench.landed 1\r\n")
    body = os.urandom(ALONE_CHUNK_BYTES)
    publication = b"PUB bench.alone %d\r\n%b\r\n" % (len(body), body)
    chunks, window = TOTAL_BYTES // ALONE_CHUNK_BYTES, WINDOW_BYTES // ALONE_CHUNK_BYTES

    def send() -> None:
        landed = 0
        for sent in range(chunks):
            while sent - landed >= window:
                landed += connection.recv(64 << 10).count(b"MSG")
            connection.sendall(publication)
        while landed < chunks:
            landed += connection.recv(64 << 10).count(b"MSG")

    return lambda _turn: asyncio.to_thread(send)


async def stock_turn(url: str, stack: contextlib.AsyncExitStack) -> Once:
    client = await nats.connect(url)
    stack.push_async_callback(client.close)
    window = asyncio.Semaphore(STOCK_WINDOW_CHUNKS)

    async def on_ack(_message: object) -> None:
        window.release()

    await client.subscribe("bench.ack", cb=on_ack)
    body = os.urandom(STOCK_CHUNK_BYTES)

    async def once(_turn: int) -> None:
        for _ in range(TOTAL_BYTES // STOCK_CHUNK_BYTES):
            await window.acquire()
            await client.publish("bench.chunks", body)
        for _ in range(STOCK_WINDOW_CHUNKS):
            await window.acquire()
        for _ in range(STOCK_WINDOW_CHUNKS):
            window.release()

    return once


async def kv_turn(url: str, mode: str, stdin: asyncio.StreamWriter, stack: contextlib.AsyncExitStack) -> Once:
    bus, bulk = await Bus.connect(url, name="prefill"), await BulkConnection.connect(url, name="prefill")
    stack.push_async_callback(bus.close)
    stack.push_async_callback(bulk.close)
    shared = SharedPool.create(TOTAL_BYTES)
    pool = PlainPool(LAYOUT, BLOCKS * TRANSFERS, shared.memory)
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

    await bus.serve(inbox("prefill", prefill_name(mode)), take)
    running = asyncio.create_task(sender.run_transfers())
    stack.callback(running.cancel)

    async def once(turn: int) -> None:
        for number, table in enumerate(tables(mode, 0)):
            request = f"bench-{turn}.{number}"
            sender.offer_transfer(request, 1, "", decode_name(mode), [table], [0], Deadline.after(60))
            for layer in range(LAYOUT.num_layers):
                sender.layer_ready((request, 1), layer, 0, BLOCKS)
            sender.finish_transfer((request, 1), [1], "")
        stdin.write(f"bench-{turn}\n".encode())
        for _ in range(TRANSFERS):
            await asyncio.wait_for(released.acquire(), 60)

    return once


def memcpy_turn() -> Once:
    source = np.frombuffer(SharedPool.create(TOTAL_BYTES).memory, np.uint8).reshape(-1, 1 << 20)
    source[:] = 1
    target = np.ones_like(source)

    async def once(_turn: int) -> None:
        for row in range(len(source)):
            target[row] = source[row]

    return once


@dataclass
class Contender:
    once: Once
    pids: tuple[int, ...]
    mb_s: list[float] = field(default_factory=list)
    cpu_s: list[tuple[float, ...]] = field(default_factory=list)
    """The CPU time of this process, the receiver and the server."""

    def spent_s(self) -> tuple[float, ...]:
        return (time.process_time(), *map(threads_cpu_s, self.pids))


@contextlib.asynccontextmanager
async def contender(mode: str, server: NatsServer) -> AsyncIterator[Contender]:
    if mode == MEMCPY:
        yield Contender(memcpy_turn(), ())
        return
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.kv_receivers", mode, server.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        greeting = (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()
        async with contextlib.AsyncExitStack() as stack:
            if mode == TCP:
                once = await tcp_turn(int(greeting))
            elif mode == ALONE:
                once = await alone_turn(server.url)
            elif mode == STOCK:
                once = await stock_turn(server.url, stack)
            else:
                once = await kv_turn(server.url, mode, child.stdin, stack)
            yield Contender(once, (child.pid,) if mode == TCP else (child.pid, server.pid))
    finally:
        child.kill()
        await child.wait()


async def take_turn(contender: Contender, turn: int) -> None:
    spent_s, start_s = contender.spent_s(), time.perf_counter()
    await contender.once(turn)
    seconds = time.perf_counter() - start_s
    contender.mb_s.append(TOTAL_BYTES / 1e6 / seconds)
    contender.cpu_s.append(tuple(b - a for a, b in zip(spent_s, contender.spent_s(), strict=True)))


async def compare(turns: int) -> None:
    server = NatsServer()
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        contenders = {mode: await stack.enter_async_context(contender(mode, server)) for mode in MODES}
        for turn in range(turns + 1):
            for each in contenders.values():
                await take_turn(each, turn)
    print(
        f"{TOTAL_BYTES / 1e6:.0f} MB a turn, median of {turns} turns, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}\n"
        "                       MB/s    best  x raw TCP  x memcpy  CPU ms per GB: sender + receiver + server"
    )
    for mode, measured in contenders.items():
        cpu = [statistics.median(side) * 1e12 / TOTAL_BYTES for side in zip(*measured.cpu_s[1:], strict=True)]
        print(
            f"{mode:20} {statistics.median(measured.mb_s[1:]):6.0f}  {max(measured.mb_s):6.0f}  "
            f"{ratio(measured, contenders[TCP]):9.2f}  {ratio(measured, contenders[MEMCPY]):8.2f}  "
            f"{sum(cpu):5.0f} = {' + '.join(f'{each:.0f}' for each in cpu)}"
        )


def ratio(one: Contender, other: Contender) -> float:
    """The median over the turns, the first of which warmed up."""
    return statistics.median(a / b for a, b in zip(one.mb_s[1:], other.mb_s[1:], strict=True))


if __name__ == "__main__":
    uvloop.run(compare(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS))
