"""What a token costs outside of the model: whole servers with next to no model behind them, by HTTP.

    python -m tests.bench.bench_control_plane [--model DIR] [--dynamo-venv DIR --dynamo-model DIR]

64 streams at a time, each asking again as soon as it is answered: 32 token ids in, 128 tokens out,
as server-sent events. Penstock computes a model of 260 k parameters and moves its KV between workers;
NVIDIA Dynamo's frontend has its mocker behind it, which computes nothing. A client process reads events
without parsing them, so that it takes as little of the cores as it can. CPU is that of all of a
server's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import uvloop

from tests.bench.serve_contenders import Contender, dynamo, penstock
from tests.support.models import target_model

EXIT_ENDED = 143  # as a shell tells of SIGTERM
STREAMS = 64
PROMPT_TOKENS = 32
OUTPUT_TOKENS = 128
ANSWER_DEADLINE_S = 60.0
READ_BYTES = 1 << 18
TAIL_BYTES = 4096  # holds the usage, which comes last


@dataclass(frozen=True, slots=True)
class Load:
    """What a client saw."""

    requests: int
    seconds: float
    ttft_p50_ms: float


def drive(host: str, port: int, model: str, seconds: float) -> Load:
    """The client process."""
    return uvloop.run(_drive(host, port, model, seconds))


async def _drive(host: str, port: int, model: str, seconds: float) -> Load:
    fields = {
        "model": model,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    waits_ms: list[float] = []
    began_s = time.perf_counter()

    async def stream(number: int) -> None:
        turn = 0
        while time.perf_counter() - began_s < seconds:
            turn += 1
            prompt = [(7 * turn + 3 * i + number) % 300 + 20 for i in range(PROMPT_TOKENS)]
            body = json.dumps(fields | {"prompt": prompt}).encode()
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                waits_ms.append(await _answer(host, port, body))

    await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    return Load(len(waits_ms), time.perf_counter() - began_s, statistics.median(waits_ms))


async def _answer(host: str, port: int, body: bytes) -> float:
    """Milliseconds to the first event. Raises ConnectionError where tokens are missing."""
    reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
    try:
        sent_s = time.perf_counter()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        first_s, tail = 0.0, b""
        while b"[DONE]" not in tail and (data := await reader.read(READ_BYTES)):
            first_s = first_s or (time.perf_counter() if b"data:" in data else 0.0)
            tail = (tail + data)[-TAIL_BYTES:]
    finally:
        writer.close()
    if not re.search(rb'"completion_tokens": ?%d\b' % OUTPUT_TOKENS, tail):
        raise ConnectionError(f"an answer is not of {OUTPUT_TOKENS} tokens: {tail[-500:]!r}")
    return 1e3 * (first_s - sent_s)


def servers(options: argparse.Namespace) -> list[Callable[[], AbstractContextManager[list[Contender]]]]:
    """What starts each. One at a time: Dynamo's frontend forgets workers that are stopped for a while."""
    found: list[Callable[[], AbstractContextManager[list[Contender]]]] = [
        lambda: penstock(options.model, options.stack_options.split())
    ]
    if options.dynamo_venv is not None:
        found.append(lambda: dynamo(options.dynamo_model, options.dynamo_venv, options.logs))
    return found


def measure(contender: Contender, client: ProcessPoolExecutor, seconds: float) -> list[str]:
    """A row of the table."""
    host, _, port = contender.address.rpartition(":")
    client.submit(drive, host, int(port), contender.model, 1.0).result()
    before_s = contender.cpu_s()
    load = client.submit(drive, host, int(port), contender.model, seconds).result()
    cpu_s = contender.cpu_s() - before_s
    tokens = load.requests * OUTPUT_TOKENS
    figures = (load.requests / load.seconds, tokens / load.seconds, 1e6 * cpu_s / tokens, load.ttft_p50_ms)
    return [contender.name, *(f"{figure:.4g}" for figure in figures)]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))  # the servers are stopped: end them, too
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=target_model(Path("/tmp/penstock-bench")))
    parser.add_argument(
        "--dynamo-venv", type=Path, help="environment with Dynamo; without it, it is left out"
    )
    parser.add_argument("--dynamo-model", type=Path, help="tokenizer with a chat template, for its mocker")
    parser.add_argument("--stack-options", default="", help="more for `penstock up`, space separated")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/penstock-bench-logs"))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if (options.dynamo_venv is None) != (options.dynamo_model is None):
        parser.error("--dynamo-venv and --dynamo-model go together")
    print("| | requests/s | tokens/s | CPU µs a token | TTFT p50 ms |\n|---|---|---|---|---|")
    options.logs.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as client:
        for _ in range(options.rounds):
            for server in servers(options):
                with server() as started:
                    row = measure(started[-1], client, options.seconds)  # Penstock's second door is HTTP
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
