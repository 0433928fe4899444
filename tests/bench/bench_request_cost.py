"""Measure the CPU of a request and of a token in a whole fleet in one process.

    python -m tests.bench.bench_request_cost [--requests N] [--streams N] [--rounds N] [--profile FILE]

The services of a simulated fleet (tests/simulation) answer requests of 2 tokens and of 64, which tells the
cost of a request from that of a token. Each round does the same work, call by call, so that the least of them
is the one that others on the machine disturbed least. What the simulation itself takes is in it, its network
and its engine; gRPC's core and nats-server are not. `--profile` writes what cProfile finds of the requests of
2 tokens, by the CPU time of the thread.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import tempfile
import time
from pathlib import Path

from shared.telemetry import logging as telemetry_logging
from tests.simulation.fleet import Fleet, fleet_of
from tests.simulation.step_profile import StepProfile
from tests.support.models import make_tiny_checkpoint

WORKERS = ("tokenizer-0", "detokenizer-0", "prefill-0", "decode-0")
ENGINE = {"kv_blocks": 1024, "max_sequences": 64}
SHORT, LONG = 2, 64
"""The tokens of an answer."""
PROMPT_TOKENS = 32
SEED = 7
LIMIT_S = 600.0
STEP = StepProfile(1500.0, 10.0, 30.0, 0.0)


async def stream(fleet: Fleet, number: int, requests: int, tokens: int) -> None:
    """Ask one request after the other."""
    for turn in range(requests):
        seed = 1000 * number + turn
        await fleet.generate([(7 * seed + 3 * at) % 50 + 5 for at in range(PROMPT_TOKENS)], seed, tokens)


def cpu_s(model: Path, requests: int, streams: int, tokens: int, profile: cProfile.Profile | None) -> float:
    """Return the CPU seconds of so many requests, once as many as there are streams were answered."""
    with fleet_of(SEED, model, {"prefill": ENGINE, "decode": ENGINE}) as fleet:
        fleet.profile = STEP

        async def scenario() -> float:
            await fleet.server.start()
            for name in WORKERS:
                fleet.start(name)
            fleet.start_gateway()
            await fleet.are_ready([*WORKERS])
            await asyncio.gather(*(stream(fleet, streams + number, 1, SHORT) for number in range(streams)))
            if profile is not None:
                profile.enable()
            began_s = time.process_time()
            each = requests // streams
            await asyncio.gather(*(stream(fleet, number, each, tokens) for number in range(streams)))
            took_s = time.process_time() - began_s
            if profile is not None:
                profile.disable()
            return took_s

        return fleet.world.run(scenario(), limit_s=LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    requests = options.requests - options.requests % options.streams
    with tempfile.TemporaryDirectory() as folder, Path("/dev/null").open("w", encoding="utf-8") as nowhere:
        telemetry_logging.configure("info", "fleet", "fleet", nowhere)
        model = Path(folder) / "tiny"
        make_tiny_checkpoint(model)
        least = {
            tokens: min(cpu_s(model, requests, options.streams, tokens, None) for _ in range(options.rounds))
            / requests
            for tokens in (SHORT, LONG)
        }
        token_us = 1e6 * (least[LONG] - least[SHORT]) / (LONG - SHORT)
        print(f"a request {1e3 * least[SHORT] - SHORT * token_us / 1e3:.2f} ms, a token {token_us:.0f} us")
        if options.profile is not None:
            profile = cProfile.Profile(time.thread_time)
            cpu_s(model, requests, options.streams, SHORT, profile)
            profile.dump_stats(options.profile)


if __name__ == "__main__":
    main()
