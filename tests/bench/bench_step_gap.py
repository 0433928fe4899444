"""What lies between a decode step's end and the next one's begin, against the engine's own loop in process.

    python -m tests.bench.bench_step_gap [--model DIR] [--rows 8,64] [--steps N] [--rounds N] [--json]

A real decode worker with a real nats-server, both in this run; KV is played: it is there at once. While
`rows` streams decode, one more joins and finishes again and again. Gaps are those between two calls of
`Engine.step`, by what happened at them; the worker and the bare engine go in turns, on one checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import structlog
import uvloop

from services.decode.actor import DecodeActor
from services.decode.config import DecodeConfig
from shared.bus import Bus, Delivery
from shared.bus.nats_server import NatsServer
from shared.deadline import Deadline
from shared.engine import Engine, EngineConfig, SamplingParams, StepResult
from shared.kv.transfer_key import TransferKey
from shared.messages import Reserve, pack_ids
from shared.process.service import Service
from shared.worker.events import Started
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.heartbeats import make_heartbeat
from tests.support.models import target_model
from tests.support.played_receiver import PlayedReceiver
from tests.support.played_sender import PlayedSender

PROMPT_TOKENS = 32
WARM_STEPS = 50
SHORT_TOKENS = 20
"""The tokens that a stream that joins draws before it finishes."""
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Medians in µs; `idle_share`: what was between steps, of the time from the first to the last one."""

    rows: int
    steps: int
    steady_us: float
    join_us: float
    finish_us: float
    p99_us: float
    step_us: float
    idle_share: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Step:
    began_s: float
    ended_s: float
    rows: int
    finished: int


class Steps:
    """Notes every step of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.noted: list[Step] = []
        self._step = engine.step
        engine.step = self._noted_step  # type: ignore[method-assign]

    def _noted_step(self) -> StepResult:
        began_s = time.perf_counter()
        result = self._step()
        ended_s = time.perf_counter()
        finished = sum(output.finish_reason is not None for output in result.outputs)
        self.noted.append(Step(began_s, ended_s, len(result.outputs), finished))
        return result

    def gaps(self, rows: int) -> Gaps:
        """Of the steps with all `rows` or one more."""
        noted = [step for step in self.noted if step.rows in (rows, rows + 1)][WARM_STEPS:]
        by_kind: dict[str, list[float]] = {"steady": [], "join": [], "finish": []}
        for before, after in pairwise(noted):
            kind = "finish" if before.finished else "join" if after.rows > before.rows else "steady"
            by_kind[kind].append(1e6 * (after.began_s - before.ended_s))
        every = sorted(gap for gaps in by_kind.values() for gap in gaps)
        whole_s = noted[-1].ended_s - noted[0].began_s
        busy_s = sum(step.ended_s - step.began_s for step in noted)
        return Gaps(
            rows,
            len(noted),
            statistics.median(by_kind["steady"]),
            statistics.median(by_kind["join"] or [0.0]),
            statistics.median(by_kind["finish"] or [0.0]),
            every[int(0.99 * len(every))],
            1e6 * statistics.median(step.ended_s - step.began_s for step in noted),
            1 - busy_s / whole_s,
            sum(step.rows for step in noted) / whole_s,
        )


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def prompt_of(number: int) -> list[int]:
    return [(7 * number + 3 * i) % 300 + 20 for i in range(PROMPT_TOKENS)]


def make_engine(options: argparse.Namespace) -> Engine:
    return Engine(EngineConfig(model_dir=options.model, max_sequences=128, kv_blocks=128 * 64))


def lengths(rows: int, steps: int) -> Iterator[int]:
    """Output tokens of the streams that stay, then of those that come and go."""
    yield from [steps + SHORT_TOKENS] * rows
    while True:
        yield SHORT_TOKENS


def alone(options: argparse.Namespace, rows: int) -> Gaps:
    """The engine's own loop, joins and all."""
    engine = make_engine(options)
    steps, wanted = Steps(engine), lengths(rows, options.steps)
    live = 0
    for number in range(rows):
        engine.admit(f"{number}", prompt_of(number), PROMPT_TOKENS, sampling(next(wanted)))
        live += 1
    number = rows
    while live and len(steps.noted) < options.steps:
        result = engine.step()
        live -= sum(output.finish_reason is not None for output in result.outputs)
        if live == rows and not engine.held().get(f"{number}"):
            number += 1
            engine.reserve(f"{number}", PROMPT_TOKENS + SHORT_TOKENS, ())
            first = [*prompt_of(number), 25]
            engine.attach(f"{number}", first, PROMPT_TOKENS, sampling(next(wanted)))
            live += 1
    engine.close()
    return steps.gaps(rows)


class Load:
    """A decode worker, and the gateway that places streams at it."""

    def __init__(self, worker: DecodeActor, rows: int, steps: int) -> None:
        self._worker = worker
        self._rows = rows
        self._lengths = lengths(rows, steps)
        self._played = cast(PlayedReceiver, worker._arrivals.receiver)
        self._played.on_expected = self._send_kv
        self._placed = 0

    def _send_kv(self, key: TransferKey) -> None:
        asyncio.get_running_loop().call_soon(self._played.complete, key, (25,), "", 0)

    def place(self) -> None:
        number = self._placed
        self._placed += 1
        reserve = Reserve(
            pack_ids(prompt_of(number)), PROMPT_TOKENS, b"", sampling(next(self._lengths)),
            "gateway-0", f"detokenizer-{number % 2}", "prefill-0", "", 0,
        )  # fmt: skip
        bus = self._worker.bus
        envelope = bus.envelope(f"request-{number}", 1, Deadline.after(LIMIT_S), "gateway-0")
        self._worker.receive(Delivery(envelope, reserve))

    async def keep_up(self) -> None:
        """All streams at once, then one more whenever that one is over."""
        for _ in range(self._rows):
            self.place()
        while True:
            await asyncio.sleep(0.002)
            if self._placed - self._rows == self._ended():
                self.place()

    def _ended(self) -> int:
        return self._placed - len(self._worker._book.jobs) - self._worker.queued


async def piped(options: argparse.Namespace, rows: int, url: str) -> Gaps:
    service = Service("decode", DecodeConfig(nats_url=url), "decode-0")
    service.bus = await Bus.connect(url, name="bench")
    service.fleet._state.observe(make_heartbeat("gateway", "gateway-0"))
    service.fleet._state.observe(make_heartbeat("prefill", "prefill-0"))
    worker = DecodeActor(
        service, lambda: make_engine(options), PlayedReceiver.make, PlayedSender.make, PrefixMirror()
    )
    running = keeping = asyncio.create_task(worker.run())
    try:
        await worker.ask(Started(), Deadline.after(LIMIT_S))
        steps = Steps(worker._driver.engine)
        keeping = asyncio.create_task(Load(worker, rows, options.steps).keep_up())
        async with asyncio.timeout(LIMIT_S):
            while len(steps.noted) < options.steps:
                await asyncio.sleep(0.01)
                for task in (running, keeping):
                    if task.done():
                        task.result()
        return steps.gaps(rows)
    finally:
        keeping.cancel()
        worker.stop()
        await asyncio.wait([running], timeout=10.0)
        await service.bus.close()


async def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    server = NatsServer()
    await server.start()
    try:
        found = []
        for rows in map(int, options.rows.split(",")):
            rounds = [
                (await piped(options, rows, server.url), await asyncio.to_thread(alone, options, rows))
                for _ in range(options.rounds)
            ]
            for who, gaps in zip(("worker", "engine"), zip(*rounds, strict=True), strict=True):
                middle = sorted(gaps, key=lambda one: one.steady_us)[len(gaps) // 2]
                found.append({"who": who, **asdict(middle)})
        return found
    finally:
        await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="checkpoint directory; the tests' small one by default")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    options.model = options.model or str(target_model(Path("/tmp/penstock-bench")))
    found = uvloop.run(measure(options))  # as services do
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':8}" + "".join(f"{name:>14}" for name in found[0] if name != "who"))
    for row in found:
        cells = (
            f"{value:14.3f}" if isinstance(value, float) else f"{value:>14}"
            for value in row.values()
            if value != row["who"]
        )
        print(f"{row['who']:8}" + "".join(cells))


if __name__ == "__main__":
    main()
