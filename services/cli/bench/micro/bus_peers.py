"""The answering sides of a round trip, each a process: `python -m …micro.bus_peers KIND URL`."""

from __future__ import annotations

import asyncio
import sys

import nats
import uvloop
from nats.aio.msg import Msg

from services.cli.bench.micro.peer_process import greet, hear_nothing, until_stdin_ends
from shared.bus import Bus, Delivery
from shared.bus.subjects import inbox
from shared.messages import AuditReport, Envelope
from shared.tasks import cancel_until_done

TCP, STOCK, OURS = "raw TCP echo", "stock nats-py request", "Penstock's bus"
ADDRESS = inbox("detokenizer", "bench-0")
REPORT = AuditReport("detokenizer", "bench-0", 1, ())
STOCK_SUBJECT = "bench.echo"
QUEUED_ASKS = 16
"""The most asks that wait for their answer; one is asked at a time."""


class TcpEcho(asyncio.Protocol):
    """Send back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]  # uvloop's is no instance of asyncio's


async def echo_tcp(_url: str) -> None:
    server = await asyncio.get_running_loop().create_server(TcpEcho, "127.0.0.1", 0)
    greet(server.sockets[0].getsockname()[1])
    await until_stdin_ends(hear_nothing)


async def echo_stock(url: str) -> None:
    client = await nats.connect(url)

    async def answer(message: Msg) -> None:
        await client.publish(message.reply, message.data)

    await client.subscribe(STOCK_SUBJECT, cb=answer)
    await client.flush()
    greet("ready")
    await until_stdin_ends(hear_nothing)
    await client.close()


async def answer_asks(url: str) -> None:
    """Answer as a service does: the receiver takes an ask down, a task of its own answers it."""
    bus = await Bus.connect(url, name="bench-answers")
    asked: asyncio.Queue[Envelope] = asyncio.Queue(QUEUED_ASKS)

    def take(delivery: Delivery) -> None:
        asked.put_nowait(delivery.envelope)

    async def answer() -> None:
        while True:
            await bus.answer(await asked.get(), REPORT)

    await bus.serve(ADDRESS, take)
    answering = asyncio.create_task(answer())
    try:
        greet("ready")
        await until_stdin_ends(hear_nothing)
    finally:
        await cancel_until_done(answering)
        await bus.close()


KINDS = {TCP: echo_tcp, STOCK: echo_stock, OURS: answer_asks}

if __name__ == "__main__":
    uvloop.run(KINDS[sys.argv[1]](sys.argv[2]))
