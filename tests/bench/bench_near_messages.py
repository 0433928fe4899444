"""Measure what a message between a detokenizer and a gateway costs in one process, with the bus and without.

    python -m tests.bench.bench_near_messages [--rounds N] [--messages N]

Two pairs in this process, on one nats-server: one says all over it, the other as services of one process do.
One message is on its way at a time, a `Text` of so many rows or a `Cancel` that is acknowledged, encoded,
decoded and handed to its receiver. The pairs take turns; told are CPU microseconds of this process and of the
server per message, the median of the rounds and the least, and the time that it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import uvloop

from services.cli.bench.run.server_watch import process_cpu_s
from shared.bus import Bus, Delivery
from shared.bus.nats_server import NatsServer
from shared.bus.near.near_inboxes import NearInboxes
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import Cancel, CancelAck, Text
from shared.tasks import Tasks

TEXT_ROWS = (1, 8, 64)
ASK_S = 60.0


class Cost(NamedTuple):
    """The cost of one message, in microseconds: CPU here, CPU of the server, and time."""

    here_us: float
    server_us: float
    wall_us: float


@dataclass(slots=True)
class Pair:
    """A gateway and a detokenizer, named by `number`."""

    gateway: Bus
    detokenizer: Bus
    number: int
    came: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Tasks = field(default_factory=Tasks)

    @classmethod
    async def connected(cls, url: str, number: int, near: NearInboxes | None) -> Pair:
        names = (f"gateway-{number}", f"detokenizer-{number}")
        buses = [await Bus.connect(url, name=name, sender=name) for name in names]
        pair = cls(buses[0], buses[1], number)
        for bus, role, receive in zip(
            buses, ("gateway", "detokenizer"), (pair.take, pair.acknowledge), strict=True
        ):
            if near is not None:
                bus.join(near, role)
            await bus.serve(inbox(role, f"{role}-{number}"), receive)
        return pair

    def take(self, _delivery: Delivery) -> None:
        self.came.set()

    def acknowledge(self, delivery: Delivery) -> None:
        answer = self.detokenizer.answer(delivery.envelope, CancelAck(True, "detokenizing"))
        self.answers.start("answer", answer)

    async def tell(self, text: Text) -> None:
        self.came.clear()
        await self.detokenizer.publish(inbox("gateway", f"gateway-{self.number}"), text)
        await self.came.wait()

    async def ask(self) -> None:
        deadline = Deadline.after(ASK_S)
        address = inbox("detokenizer", f"detokenizer-{self.number}")
        envelope = self.gateway.envelope("gateway-0.1", 1, deadline, "gateway-0")
        await self.gateway.ask(address, Cancel("stop"), envelope, deadline)

    async def close(self) -> None:
        await self.answers.finish(0.0)
        await self.gateway.close()
        await self.detokenizer.close()


def text_of(rows: int) -> Text:
    """Return a step's text of as many streams."""
    ids = tuple(f"gateway-0.{number:012x}" for number in range(rows))
    positions = tuple(range(100, 100 + rows))
    none = ((),) * rows
    return Text(ids, (1,) * rows, positions, ((1234,),) * rows, (" word",) * rows, ("",) * rows, none, none)


async def cost_of(pair: Pair, rows: int, messages: int, server_pid: int) -> Cost:
    """Return what a `Text` of `rows` costs, for 0 an ask."""
    text = text_of(rows)
    before = (process_cpu_s(os.getpid()), process_cpu_s(server_pid), time.perf_counter())
    for _ in range(messages):
        await (pair.tell(text) if rows else pair.ask())
    after = (process_cpu_s(os.getpid()), process_cpu_s(server_pid), time.perf_counter())
    return Cost(*(1e6 * (now - was) / messages for was, now in zip(before, after, strict=True)))


async def measured(options: argparse.Namespace) -> None:
    server = NatsServer()
    await server.start()
    pairs = {
        "bus": await Pair.connected(server.url, 0, None),
        "near": await Pair.connected(server.url, 1, NearInboxes()),
    }
    costs: defaultdict[tuple[int, str], list[Cost]] = defaultdict(list)
    for _ in range(options.rounds):
        for rows in (*TEXT_ROWS, 0):
            for kind, pair in pairs.items():
                costs[rows, kind].append(await cost_of(pair, rows, options.messages, server.pid))
    for pair in pairs.values():
        await pair.close()
    await server.stop()
    print(f"{'':<22} {'CPU, all':>16} {'server alone':>16} {'time':>16}   µs, median and least")
    for (rows, kind), rounds in costs.items():
        name = f"{f'Text of {rows}' if rows else 'Cancel and its ack'} {kind}"
        columns = [
            [cost.here_us + cost.server_us for cost in rounds],
            [cost.server_us for cost in rounds],
            [cost.wall_us for cost in rounds],
        ]
        print(f"{name:<23}" + " ".join(f"{median(each):8.0f} {min(each):7.0f}" for each in columns))
    print(f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=300, help="of each kind in a round")
    uvloop.run(measured(parser.parse_args()))


if __name__ == "__main__":
    main()
