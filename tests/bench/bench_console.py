"""The console of a busy gateway: `python -m tests.bench.bench_console [--rate N] [--instances N]`.

Requests end at a gateway at a steady rate, by the call with which a session ends, in a fleet that beats,
while somebody looks at both pages of the console four times a second over HTTP. Printed are the µs that an
ended request costs the loop, what a look takes and weighs, how late the loop was, and the memory.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from services.gateway.context import SessionContext
from services.gateway.http.console.fleet_picture import fleet_picture
from services.gateway.http.console.latency_picture import latency_picture
from services.gateway.http.console.request_list import request_list
from services.gateway.scope.outcome import Outcome
from services.gateway.session.console_report import console_report
from shared.bus import Bus
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import fleet
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Unavailable
from shared.roles import ROLES
from shared.telemetry import logging
from tests.bench.process_cost import pss_mb
from tests.integration.gateway_peers import gateway_named, heartbeat
from tests.support.percentile import percentile
from tests.support.records import make_record
from tests.support.wait import until

TICK_S = 0.01
LOOK_S = 0.25
BEAT_S = 0.4
PAGES = ("/console/pipeline", "/console/requests")
FAILED_SHARE = 0.01
MADE = 50
ANSWERED, LOST = Outcome.finished("stop"), Outcome.of(Unavailable("no decode worker is left", hop="decode"))


class Fleet(threading.Thread):
    """So many instances, from a thread: their heartbeats cost the gateway's loop what they cost it always."""

    def __init__(self, url: str, instances: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._names = [(ROLES[n % len(ROLES)], f"{ROLES[n % len(ROLES)]}-{n}") for n in range(instances)]
        self.ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        bus = await Bus.connect(self._url, name="fleet", sender="fleet")
        while not self.ended.is_set():
            for role, name in self._names:
                beat = heartbeat(role, name, sent_unix_us=time.time_ns() // 1000)
                await bus.publish(fleet(role, name), beat)
            await asyncio.sleep(BEAT_S)
        await bus.close()


class Watcher(threading.Thread):
    """Somebody who looks at the console, on one connection: (page, ms, bytes) of each look."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.looks: list[tuple[str, float, int]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address)
        while not self.ended.wait(LOOK_S):
            for page in PAGES:
                began_s = time.perf_counter()
                connection.request("GET", page)
                body = connection.getresponse().read()
                self.looks.append((page, 1000 * (time.perf_counter() - began_s), len(body)))


async def end_requests(context: SessionContext, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """End requests at the rate; return the µs of each, and the ms by which each turn came late."""
    loop, costs_us, late_ms = asyncio.get_running_loop(), list[float](), list[float]()
    numbers, template = itertools.count(), make_record()
    began_s = loop.time()
    for turn in range(int(seconds / TICK_S)):
        for _ in range(int(rate * TICK_S)):
            number = next(numbers)
            lost = number % int(1 / FAILED_SHARE) == 0
            record = replace(template, request_id=f"gateway-0.{number:012x}", ttft_us=2000 + number % 997)
            if lost:
                record = replace(record, outcome="failed", finish="", error="unavailable", hop="decode")
            begin_ns = time.thread_time_ns()
            context.record_end(record, LOST if lost else ANSWERED)
            costs_us.append((time.thread_time_ns() - begin_ns) / 1000)
        due_s = began_s + (turn + 1) * TICK_S
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        late_ms.append(1000 * (loop.time() - due_s))
    return costs_us, late_ms


def making_ms(make: Callable[[], dict[str, Any]]) -> float:
    """The CPU time in which an answer is made, whatever else the machine does."""
    times_ms = []
    for _ in range(MADE):
        begin_ns = time.thread_time_ns()
        json.dumps(make(), separators=(",", ":")).encode()
        times_ms.append((time.thread_time_ns() - begin_ns) / 1e6)
    return round(statistics.median(times_ms), 2)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    server = NatsServer()
    await server.start()
    try:
        async with gateway_named(server.url, "gateway-0", SYSTEM_CLOCK, {}) as running:
            beating = Fleet(server.url, options.instances)
            beating.start()
            await until(lambda: len(running.fleet.all()) >= options.instances)
            feed = partial(end_requests, running.context, options.rate)
            await feed(options.warm_s)
            before_mb = pss_mb(os.getpid())
            _, idle_late_ms = await feed(options.seconds)
            watcher = Watcher(running.http.address)
            watcher.start()
            costs_us, late_ms = await feed(options.seconds)
            watcher.ended.set()
            beating.ended.set()
            await asyncio.to_thread(watcher.join)
            await asyncio.to_thread(beating.join)
            grown_mb = pss_mb(os.getpid()) - before_mb
            context = running.context
            making = {
                PAGES[0]: making_ms(
                    lambda: fleet_picture(context) | latency_picture((console_report(context, 0, ()),))
                ),
                PAGES[1]: making_ms(lambda: request_list((console_report(context, 0, ()),))),
            }
    finally:
        await server.stop()
    return {
        "requests": len(costs_us),
        "loop_us_per_ended_request": {
            "median": statistics.median(costs_us),
            "p99": percentile(costs_us, 0.99),
        },
        "cpu_ms_of_an_answer": making,
        "look_ms": {page: _spread([ms for at, ms, _ in watcher.looks if at == page]) for page in PAGES},
        "largest_answer_bytes": {page: max(n for at, _, n in watcher.looks if at == page) for page in PAGES},
        "loop_late_ms": {"alone": _spread(idle_late_ms), "watched": _spread(late_ms)},
        "memory_grown_mb": round(grown_mb, 1),
    }


def _spread(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "p95": percentile(values, 0.95), "worst": max(values)}
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-s", type=float, default=5)
    parser.add_argument("--instances", type=int, default=8)
    logging.configure("info", "gateway", "gateway-0", io.StringIO())
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
