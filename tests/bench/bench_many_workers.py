"""Measure what a fleet's size costs a gateway: a fleet of simulated decode workers in virtual time.

    python -m tests.bench.bench_many_workers [--workers 50 100 200 400] [--requests 40] [--queued 60]

Real services in one loop (`tests/simulation`), none of which computes. CPU is that of this process, counted
to the node whose call it was. `heartbeat`: the gateway at rest, for each heartbeat that it hears;
`placement`: for each of requests of one token that come one after the other; `queued`: for each of as many
that come at once. A column that grows as the workers do is linear in them for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.fleet_state import REST_AFTER_S
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.simulation.trace import Trace
from tests.support.client import Answer, request
from tests.support.models import make_tiny_checkpoint

OTHERS = ["tokenizer-0", "detokenizer-0", "prefill-0"]
REST_S = 20.0
START_TOGETHER = 25
"""Workers that begin at a time: their start is not what is measured."""
LIMIT_S = 36_000.0
SMALL = {"kv_blocks": 16, "max_sequences": 4}
PROMPT = tuple(range(5, 37))


class CpuTrace(Trace):
    """Counts the CPU time of calls to the nodes that they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu_ns: Counter[str] = Counter()
        self._node = ""
        self._since_ns = time.process_time_ns()

    def called(self, at_ns: int, node: str, what: str) -> None:
        del at_ns, what
        now_ns = time.process_time_ns()
        self.cpu_ns[self._node] += now_ns - self._since_ns
        self._node, self._since_ns = node, now_ns


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU of the gateway, in microseconds, and of all nodes together in seconds of a second at rest."""

    workers: int
    heartbeats_per_s: float
    heartbeat_us: float
    placement_us: float
    queued_us: float
    rest_cpu_share: float


async def measure(fleet: Fleet, workers: int, requests: int, queued: int) -> Costs:
    trace = CpuTrace()
    fleet.world.trace = fleet.world.loop.trace = trace
    await fleet.server.start()
    names = [*OTHERS, GATEWAY, *(f"decode-{number}" for number in range(workers))]
    for first in range(0, len(names), START_TOGETHER):
        for name in names[first : first + START_TOGETHER]:
            fleet.start(name)
        await asyncio.sleep(1.0)
    await fleet.are_ready(names)
    await asyncio.sleep(2 * REST_AFTER_S)
    heard = Heard(fleet)
    before = trace.cpu_ns.copy()
    await asyncio.sleep(REST_S)
    at_rest, beats = trace.cpu_ns - before, heard.beats
    before = trace.cpu_ns.copy()
    for number in range(requests):
        await ask(fleet, number)
    one_by_one, before = trace.cpu_ns - before, trace.cpu_ns.copy()
    await asyncio.gather(*(ask(fleet, number) for number in range(queued)))
    at_once = trace.cpu_ns - before
    return Costs(
        workers,
        beats / REST_S,
        at_rest[GATEWAY] / beats / 1e3,
        one_by_one[GATEWAY] / requests / 1e3,
        at_once[GATEWAY] / queued / 1e3,
        at_rest.total() / REST_S / 1e9,
    )


class Heard:
    """Counts the heartbeats that the gateway hears from now on."""

    def __init__(self, fleet: Fleet) -> None:
        self.beats = 0
        state = fleet.services[GATEWAY].fleet._state
        observe = state.observe

        def count(beat: object) -> object:
            self.beats += 1
            return observe(beat)  # type: ignore[arg-type]  # whatever comes

        state.observe = count  # type: ignore[method-assign, assignment]


async def ask(fleet: Fleet, number: int) -> Answer:
    message = request(PROMPT, max_tokens=1, seed=number, temperature=0.8, ignore_eos=True)
    answer = await fleet.client().generate(GATEWAY, message)
    assert answer.end is not None, answer
    assert answer.end.outcome == pb.OUTCOME_FINISHED, answer
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--queued", type=int, default=60)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print("workers  beats/s  heartbeat us  placement us  queued us  all CPU at rest s/s", flush=True)
    with TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        make_tiny_checkpoint(model)
        for workers in options.workers:
            with fleet_of(1, model, {"decode": SMALL}) as fleet:
                work = measure(fleet, workers, options.requests, options.queued)
                costs = fleet.world.run(work, limit_s=LIMIT_S)
            print(
                f"{costs.workers:7d}{costs.heartbeats_per_s:9.1f}{costs.heartbeat_us:14.1f}"
                f"{costs.placement_us:14.0f}{costs.queued_us:11.0f}{costs.rest_cpu_share:22.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
