"""A request and its answer over the bus, over the same bytes through raw TCP and through stock nats-py."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import nats

from services.cli.bench.micro.bus_peers import ADDRESS, OURS, STOCK, STOCK_SUBJECT, TCP
from services.cli.bench.micro.cost_rows import CostRow, cost_rows_of
from services.cli.bench.micro.peer_process import peer_of
from services.cli.bench.micro.turns import TURN_DEADLINE_S, TurnSide, TurnWork, take_turns
from shared.bus import Bus, codec
from shared.bus.nats_server import NatsServer
from shared.deadline import Deadline
from shared.messages import AuditRequest, Envelope

TRIPS = 200
"""The round trips of one turn, one after another."""
PEERS = "services.cli.bench.micro.bus_peers"
FLOORS = {OURS: (TCP, STOCK), STOCK: (TCP,)}


async def measure_bus_trip(seconds: float, trips: int = TRIPS) -> list[CostRow]:
    """Return time and CPU time of a round trip. Raises Unavailable without a nats-server."""
    async with AsyncExitStack() as stack:
        server = NatsServer()
        stack.push_async_callback(server.stop)
        await server.start()
        sides = {}
        for name in (TCP, STOCK, OURS):
            peer = await stack.enter_async_context(peer_of(PEERS, name, server.url))
            if name == TCP:
                sides[name] = TurnSide(await _tcp_trips(int(peer.greeting), stack, trips), (peer.pid,))
            else:
                connect = _stock_trips if name == STOCK else _bus_trips
                sides[name] = TurnSide(await connect(server.url, stack, trips), (peer.pid, server.pid))
        costs = await take_turns(sides, seconds)
    figures = {
        "µs a trip": lambda turn: 1e6 * turn.wall_s / trips,
        "CPU µs a trip": lambda turn: 1e6 * turn.cpu_s / trips,
    }
    return cost_rows_of(costs, FLOORS, figures)


def _request() -> bytes:
    """Return the bytes of what is asked over the bus; the floors send as many."""
    return codec.encode(AuditRequest(), Envelope())


async def _tcp_trips(port: int, stack: AsyncExitStack, trips: int) -> TurnWork:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    body = _request()

    async def work(_turn: int) -> None:
        for _ in range(trips):
            writer.write(body)
            await reader.readexactly(len(body))

    return work


async def _stock_trips(url: str, stack: AsyncExitStack, trips: int) -> TurnWork:
    client = await nats.connect(url)
    stack.push_async_callback(client.close)
    body = _request()

    async def work(_turn: int) -> None:
        for _ in range(trips):
            await client.request(STOCK_SUBJECT, body, timeout=TURN_DEADLINE_S)

    return work


async def _bus_trips(url: str, stack: AsyncExitStack, trips: int) -> TurnWork:
    bus = await Bus.connect(url, name="bench-asks")
    stack.push_async_callback(bus.close)

    async def work(_turn: int) -> None:
        for _ in range(trips):
            deadline = Deadline.after(TURN_DEADLINE_S)
            await bus.ask(ADDRESS, AuditRequest(), bus.envelope(deadline=deadline), deadline)

    return work
