"""Measure what a gateway alone takes of a core for many streams at a given rate, by gRPC and by HTTP.

    python -m tests.bench.bench_gateway_streams [--streams N] [--tokens-per-s N] [--seconds S]

A gateway is a process of its own before a scripted fleet, whose detokenizer sends a message for each batch of
`BATCH` streams and step, as a decode worker's steps are sent. Clients read in a process of their own. CPU is
read from /proc while tokens flow at their rate: nothing is placed and nothing ends in that time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO

from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.messages import Open, Text
from tests.bench.process_cost import cpu_s
from tests.integration.gateway_peers import GATEWAY, Fleet, fleet
from tests.support.data import REPOSITORY
from tests.support.wait import until

BATCH = 64
"""The streams of one decode worker."""
WARM_S = 2.0
OUTPUT_TOKENS = 100_000
"""More than come: no answer ends while it is measured."""
PROMPT_TOKENS = 32
EDGES = ("grpc", "http")
START_S = 60.0
LOG_BYTES = 1 << 16


@asynccontextmanager
async def nats_server() -> AsyncIterator[str]:
    server = NatsServer()
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


@asynccontextmanager
async def gateway(nats_url: str, streams: int) -> AsyncIterator[tuple[int, dict[str, str]]]:
    """Yield the pid of a gateway and its addresses by edge."""
    settings = {
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_INSTANCE": GATEWAY,
        "PENSTOCK_GATEWAY_GRPC_PORT": "0",
        "PENSTOCK_GATEWAY_HTTP_PORT": "0",
        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
        "PENSTOCK_GATEWAY_MAX_SESSIONS": str(streams + BATCH),
        "PENSTOCK_METRICS_PORT": "0",
    }
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.gateway"),
            cwd=REPOSITORY,
            env={**os.environ, **settings},
            stderr=log.fileno(),
        )
        try:
            await until(lambda: addresses_in(log), START_S)
            yield process.pid, addresses_in(log)
        finally:
            process.kill()
            await process.wait()


def addresses_in(log: BinaryIO) -> dict[str, str]:
    """Return where a gateway says that it listens, empty before it has said all."""
    written = os.pread(log.fileno(), LOG_BYTES, 0)
    told = [json.loads(line) for line in written[: written.rfind(b"\n") + 1].splitlines()]
    found = {edge: line[edge] for line in told for edge in EDGES if line["event"] == f"{edge}_listening"}
    return found if len(found) == len(EDGES) else {}


@asynccontextmanager
async def clients(edge: str, address: str, options: argparse.Namespace) -> AsyncIterator[None]:
    """Hold as many streams open as are asked for, and read them."""
    module = {"grpc": "tests.bench.grpc_load", "http": "tests.bench.sse_load"}[edge]
    counts = {
        "address": address,
        "streams": options.streams,
        "connections": options.connections if edge == "grpc" else options.streams,
        "prompt-tokens": PROMPT_TOKENS,
        "output-tokens": OUTPUT_TOKENS,
        "seconds": 3600.0,
    }
    arguments = [word for name, value in counts.items() for word in (f"--{name}", str(value))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), cwd=REPOSITORY, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
        if process.returncode is not None:
            raise SystemExit("the client failed; its error stands above")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stream(peers: Fleet, request_ids: Sequence[str], rate: float, seconds: float, position: int) -> int:
    """Send a token of each stream at a rate for some seconds; return the position behind the last ones."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    steps = int(rate * seconds)
    for step in range(steps):
        for first in range(0, len(request_ids), BATCH):
            ids = tuple(request_ids[first : first + BATCH])
            count = len(ids)
            await peers.bus.publish(
                inbox("gateway", GATEWAY),
                Text(
                    ids,
                    (1,) * count,
                    (position + step,) * count,
                    tuple((1000 + row,) for row in range(count)),
                    (" word",) * count,
                    ("",) * count,
                    ((),) * count,
                    ((),) * count,
                ),
            )
            # Workers do not step together: their messages come spread over the time of a step.
            share = (step + (first + BATCH) / len(request_ids)) / rate
            await asyncio.sleep(max(0.0, began_s + share - loop.time()))
    return position + steps


async def measure(edge: str, options: argparse.Namespace) -> dict[str, float | str]:
    async with (
        nats_server() as url,
        fleet(url) as peers,
        gateway(url, options.streams) as (pid, addresses),
    ):
        for peer in peers.peers.values():
            peer.say(capacity=1 << 16, kv_blocks=1 << 20, kv_blocks_free=1 << 20)
        async with clients(edge, addresses[edge], options):
            opened = peers["detokenizer-0"]
            await until(lambda: len(opened.of(Open)) >= options.streams, timeout_s=120)
            request_ids = [envelope.request_id for envelope, _ in opened.of(Open)]
            position = await stream(peers, request_ids, options.tokens_per_s, WARM_S, PROMPT_TOKENS)
            began_s, before_s = time.monotonic(), cpu_s(pid)
            end = await stream(peers, request_ids, options.tokens_per_s, options.seconds, position)
            took_s, cost_s = time.monotonic() - began_s, cpu_s(pid) - before_s
    tokens = (end - position) * options.streams
    return {
        "edge": edge,
        "tokens_per_s": round(tokens / took_s),
        "core": round(cost_s / took_s, 3),
        "us_per_token": round(1e6 * cost_s / tokens, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10, help="of gRPC; each event stream has one")
    parser.add_argument("--tokens-per-s", type=float, default=20.0, help="of each stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--edges", nargs="+", default=EDGES, choices=EDGES)
    options = parser.parse_args()
    for edge in options.edges:
        print(json.dumps(asyncio.run(measure(edge, options))))


if __name__ == "__main__":
    main()
