"""KV over `nats` and over `shm`, over raw TCP, a nats-server alone, stock nats-py and memcpy.

Sender and receiver are two processes on this machine. All stay connected and take turns.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from services.cli.bench.micro.cost_rows import CostRow, cost_rows_of
from services.cli.bench.micro.kv_floors import alone_work, memcpy_work, stock_work, tcp_work
from services.cli.bench.micro.kv_load import (
    ALONE,
    MEMCPY,
    OURS,
    STOCK,
    TCP,
    KvLoad,
    decode_name,
    prefill_name,
)
from services.cli.bench.micro.peer_process import Peer, peer_of
from services.cli.bench.micro.turns import TURN_DEADLINE_S, TurnSide, TurnWork, take_turns
from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.engine.native.library import library
from shared.errors import PenstockError
from shared.kv.memory.plain_pool import PlainPool
from shared.kv.memory.shared_pool import SharedPool
from shared.kv.sending.sender import KvSender
from shared.tasks import cancel_until_done

PEERS = "services.cli.bench.micro.kv_peers"
RANDOM_BYTES = 1 << 10
"""The random bytes that a pool is filled with, again and again."""
DEFAULT_LOAD = KvLoad()
FLOORS = {
    ALONE: (TCP,),
    STOCK: (TCP, ALONE),
    **{mode: (TCP, ALONE) if mode.startswith("nats") else (TCP, MEMCPY) for mode in OURS},
}


async def measure_kv_paths(seconds: float, load: KvLoad = DEFAULT_LOAD) -> list[CostRow]:
    """Return throughput and CPU time of each path. Raises Unavailable without a nats-server."""
    library()  # what it needs takes a second to load, which is no transfer's
    async with AsyncExitStack() as stack:
        server = NatsServer()
        stack.push_async_callback(server.stop)
        await server.start()
        sides = {mode: await _side(mode, load, server, stack) for mode in (TCP, ALONE, STOCK, *OURS)}
        sides[MEMCPY] = TurnSide(memcpy_work(load))
        costs = await take_turns(sides, seconds)
    figures = {
        "MB/s": lambda turn: load.total_bytes / 1e6 / turn.wall_s,
        "CPU ms a GB": lambda turn: turn.cpu_s * 1e12 / load.total_bytes,
    }
    return cost_rows_of(costs, FLOORS, figures)


async def _side(mode: str, load: KvLoad, server: NatsServer, stack: AsyncExitStack) -> TurnSide:
    peer = await stack.enter_async_context(peer_of(PEERS, mode, server.url, load.words()))
    if mode == TCP:
        return TurnSide(await tcp_work(int(peer.greeting), load, stack), (peer.pid,))
    if mode == ALONE:
        work = alone_work(server.url, load, stack)
    elif mode == STOCK:
        work = await stock_work(server.url, load, stack)
    else:
        work = await _kv_work(server.url, mode, load, peer, stack)
    return TurnSide(work, (peer.pid, server.pid))


async def _kv_work(url: str, mode: str, load: KvLoad, peer: Peer, stack: AsyncExitStack) -> TurnWork:
    bus = await Bus.connect(url, name="prefill")
    stack.push_async_callback(bus.close)
    bulk = await BulkConnection.connect(url, name="prefill")
    stack.push_async_callback(bulk.close)
    shared = SharedPool.create(load.total_bytes)
    pool = PlainPool(load.layout, load.pool_blocks, shared.memory)
    pool.memory[:] = os.urandom(RANDOM_BYTES) * (load.total_bytes // RANDOM_BYTES)
    ended: asyncio.Queue[PenstockError | None] = asyncio.Queue(load.transfers)
    sender = KvSender(
        bus,
        bulk,
        pool,
        shared,
        on_released=lambda _key: ended.put_nowait(None),
        on_failed=lambda _key, error: ended.put_nowait(error),
    )

    def take(delivery: Delivery) -> None:
        sender.handle_message(delivery)

    await bus.serve(inbox("prefill", prefill_name(mode)), take)
    running = asyncio.create_task(sender.run_transfers())
    stack.push_async_callback(cancel_until_done, running)
    tables = load.tables(mode, 0)

    async def work(turn: int) -> None:
        for number, table in enumerate(tables):
            key = (f"bench-{turn}.{number}", 1)
            deadline = Deadline.after(TURN_DEADLINE_S)
            sender.offer_transfer(*key, "", decode_name(mode), [table], [0], deadline)
            for layer in range(load.layers):
                sender.layer_ready(key, layer, 0, load.blocks)
            sender.finish_transfer(key, [1], "")
        peer.tell(f"bench-{turn}")
        for _ in tables:
            if (error := await ended.get()) is not None:
                raise error

    return work
