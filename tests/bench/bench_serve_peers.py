"""Whole servers side by side, each streaming to a client on the same machine, with all cores given to each.

    python -m tests.bench.bench_serve_peers --model DIR [--vllm-venv DIR] [--llama-server FILE --gguf FILE]

Columns, all with random prompts of token ids, greedy, no end token:

* **c=1**: 256-token prompts, 64 tokens out, one after another.
* **c=8**: the same from 8 clients, each asking again as soon as it is answered.
* **mixed**: 4 streams whose time between events is measured, alone and then while 2048-token prompts arrive,
  the next when the one before has its first token.

A round goes through all servers in turns, so that a noisy minute meets all; those that wait are stopped
(SIGSTOP). A cell is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import statistics
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.bench.make_model import VOCAB_SIZE
from tests.bench.serve_client import Door, Streamed, ask, watch
from tests.bench.serve_contenders import Contender, llama_cpp, penstock, vllm
from tests.support.percentile import percentile

EXIT_ENDED = 143  # as a shell tells of SIGTERM
PROMPT_TOKENS = 256
OUTPUT_TOKENS = 64
CLIENTS = 8
LIVE_STREAMS = 4
LIVE_PROMPT_TOKENS = 64
LIVE_TOKENS = 4096  # more than any window lasts
LONG_PROMPT_TOKENS = 2048
RANDOM = random.Random(0)


@dataclass(frozen=True, slots=True)
class Reading:
    """One server in one round."""

    c1_ttft_ms: float
    c1_itl_ms: float
    c8_ttft_p50_ms: float
    c8_ttft_p99_ms: float
    c8_itl_ms: float
    c8_tokens_per_s: float
    alone_p99_ms: float
    mixed_itl_p50_ms: float
    mixed_itl_p99_ms: float
    mixed_ttft_ms: float
    pss_mb: float


def prompt(tokens: int) -> list[int]:
    """Its own each time: no prefix cache helps."""
    return [RANDOM.randrange(10, VOCAB_SIZE) for _ in range(tokens)]


async def measure(contender: Contender, options: argparse.Namespace) -> Reading:
    async with contender.door() as door:
        await ask(door, prompt(PROMPT_TOKENS), OUTPUT_TOKENS)
        await ask(door, prompt(LONG_PROMPT_TOKENS), 2)
        single = [await ask(door, prompt(PROMPT_TOKENS), OUTPUT_TOKENS) for _ in range(options.requests)]
        crowd = await closed_loop(door, options.requests)
        alone, mixed, long_ones = await mixed_load(door, options.window_s)
    seconds = max(one.arrived_s[-1] for one in crowd) - min(one.sent_s for one in crowd)
    return Reading(
        c1_ttft_ms=statistics.median(one.ttft_ms for one in single),
        c1_itl_ms=statistics.median(one.itl_ms for one in single),
        c8_ttft_p50_ms=percentile([one.ttft_ms for one in crowd], 0.5),
        c8_ttft_p99_ms=percentile([one.ttft_ms for one in crowd], 0.99),
        c8_itl_ms=statistics.median(one.itl_ms for one in crowd),
        c8_tokens_per_s=sum(one.tokens for one in crowd) / seconds,
        alone_p99_ms=percentile(alone, 0.99),
        mixed_itl_p50_ms=percentile(mixed, 0.5),
        mixed_itl_p99_ms=percentile(mixed, 0.99),
        mixed_ttft_ms=statistics.median(one.ttft_ms for one in long_ones),
        pss_mb=contender.pss_mb(),
    )


async def closed_loop(door: Door, requests_each: int) -> list[Streamed]:
    async def client() -> list[Streamed]:
        return [await ask(door, prompt(PROMPT_TOKENS), OUTPUT_TOKENS) for _ in range(requests_each)]

    answers = await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return [answer for each in answers for answer in each]


async def mixed_load(door: Door, window_s: float) -> tuple[list[float], list[float], list[Streamed]]:
    """Milliseconds between events of the live streams, alone and beside long prompts; and those prompts."""
    arrivals: list[list[float]] = [[] for _ in range(LIVE_STREAMS)]
    async with watch(door, [prompt(LIVE_PROMPT_TOKENS) for _ in arrivals], LIVE_TOKENS, arrivals):
        await asyncio.sleep(window_s / 2)
        alone = take_gaps_ms(arrivals)
        long_ones = []
        ends_s = asyncio.get_running_loop().time() + window_s
        while asyncio.get_running_loop().time() < ends_s:
            long_ones.append(await ask(door, prompt(LONG_PROMPT_TOKENS), 1))
        return alone, take_gaps_ms(arrivals), long_ones


def take_gaps_ms(arrivals: list[list[float]]) -> list[float]:
    """Between the arrivals so far, which are forgotten but for the last of each stream."""
    gaps = []
    for times in arrivals:
        gaps += [1e3 * (after - before) for before, after in itertools.pairwise(times)]
        del times[:-1]
    return gaps


def markdown(rounds: dict[str, list[Reading]]) -> str:
    names = [field.name for field in fields(Reading)]
    rows = [["median of the rounds", *names], ["---"] * (len(names) + 1)]
    for contender, readings in rounds.items():
        cells = [f"{statistics.median(getattr(one, name) for one in readings):.4g}" for name in names]
        rows.append([contender, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint, as make_model writes it")
    parser.add_argument("--vllm-venv", type=Path, help="environment with vLLM; without it vLLM is left out")
    parser.add_argument("--llama-server", type=Path, help="program; without it llama.cpp is left out")
    parser.add_argument("--gguf", type=Path, help="the same checkpoint for llama.cpp")
    parser.add_argument("--stack-options", default="", help="more for `penstock up`, space separated")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=6, help="of each client in a column")
    parser.add_argument("--window-s", type=float, default=12.0, help="how long prompts arrive in `mixed`")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/penstock-bench-logs"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="all readings, too")
    options = parser.parse_args()
    if (options.llama_server is None) != (options.gguf is None):
        parser.error("--llama-server and --gguf go together")
    return options


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))  # the servers are stopped: end them, too
    options = parse()
    options.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        contenders: list[Contender] = []
        for server in servers(options):
            started = stack.enter_context(server)
            contenders += started
            started[0].pause()
            note(f"{started[0].name} is ready")
        rounds: dict[str, list[Reading]] = {contender.name: [] for contender in contenders}
        for number in range(options.rounds):
            for contender in contenders:
                contender.resume()
                rounds[contender.name].append(asyncio.run(measure(contender, options)))
                contender.pause()
                note(f"round {number + 1}, {contender.name}: {rounds[contender.name][-1]}")
    print(markdown(rounds))
    if options.json is not None:
        readings = {name: [asdict(one) for one in each] for name, each in rounds.items()}
        options.json.write_text(json.dumps(readings, indent=2) + "\n")


def servers(options: argparse.Namespace) -> list[AbstractContextManager[list[Contender]]]:
    """Those that can be started here."""
    found: list[AbstractContextManager[list[Contender]]] = [
        penstock(options.model, options.stack_options.split())
    ]
    if options.vllm_venv is not None:
        log = options.logs / "vllm.log"
        found.append(vllm(options.model, options.vllm_venv, log, caches_prefixes=False))
    if options.llama_server is not None:
        found.append(llama_cpp(options.gguf, options.llama_server, options.logs / "llama.cpp.log"))
    return found


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
