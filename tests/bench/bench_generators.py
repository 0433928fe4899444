"""Load generators beside ours, on a server whose every time is known: what each says of the same answers.

    python -m tests.bench.bench_generators [--guidellm FILE] [--aiperf FILE] [--rounds 2]

The server (`tests/support/scripted_server.py`, in a process of its own) waits 100 ms to the first token of an
answer and 20 ms to each of the 47 behind it. Each generator keeps four clients, 100 requests in all, one
generator after another, in turns over the rounds. It measures well where it says that, and little more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from shared.text.model_source import DEMO_MODEL
from tests.support.data import REPOSITORY
from tests.support.scripted_server import Asked, Scripted, scripted_server, told_story

FIRST_S, GAP_S = 0.100, 0.020
TOKENS = 48
PROMPT_TOKENS = 64
CLIENTS = 4
REQUESTS = 100
RUN_TIMEOUT_S = 180
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
"""The fields that some clients want to find in each event."""
Figures = dict[str, float]
UNITS = {
    "ttft p50": "ms",
    "ttft p99": "ms",
    "itl mean": "ms",
    "request p50": "ms",
    "request p99": "ms",
    "output": "tokens/s",
}


def answer(asked: Asked) -> Scripted:
    if asked.path != "/v1/chat/completions":
        return Scripted(body={"object": "list", "data": [{"id": "scripted", "object": "model"}]})
    story = told_story(TOKENS, FIRST_S, GAP_S)
    return Scripted(tuple((wait_s, {**piece, **CHUNK}) for wait_s, piece in story.pieces))


def serve(told: Connection) -> None:
    async def until_killed() -> None:
        async with scripted_server(answer) as server:
            told.send(server.url)
            await asyncio.Event().wait()

    asyncio.run(until_killed())


@contextmanager
def served() -> Iterator[str]:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.kill()
        server.join()


def ours(url: str, folder: Path) -> Figures:
    report = folder / "ours.json"
    words = ("--url", url, "--concurrency", str(CLIENTS), "--requests", str(REQUESTS), "--duration", "600")
    lengths = ("--input-tokens", str(PROMPT_TOKENS), "--output-tokens", str(TOKENS))
    run([sys.executable, "-m", "services.cli", "bench", "serve", *words, *lengths, "--json", str(report)])
    summary = json.loads(report.read_text())["summary"]
    found = summary["latencies_ms"]
    return {
        "ttft p50": found["ttft"]["p50"]["value"],
        "ttft p99": found["ttft"]["p99"]["value"],
        "itl mean": found["itl"]["mean"],
        "request p50": found["e2e"]["p50"]["value"],
        "request p99": found["e2e"]["p99"]["value"],
        "output": summary["rates"]["output_tokens_per_s"],
    }


def aiperf(program: Path, url: str, folder: Path) -> Figures:
    lengths = ("--isl", str(PROMPT_TOKENS), "--osl", str(TOKENS))
    load = ("--concurrency", str(CLIENTS), "--request-count", str(REQUESTS), *lengths)
    where = ("--url", url, "--model", "scripted", "--tokenizer", str(DEMO_MODEL), "--endpoint-type", "chat")
    quiet = ("--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(folder))
    run([str(program), "profile", *where, *load, "--streaming", "--use-server-token-count", *quiet])
    found = json.loads((folder / "profile_export_aiperf.json").read_text())
    return {
        "ttft p50": found["time_to_first_token"]["p50"],
        "ttft p99": found["time_to_first_token"]["p99"],
        "itl mean": found["inter_token_latency"]["avg"],
        "request p50": found["request_latency"]["p50"],
        "request p99": found["request_latency"]["p99"],
        "output": found["output_token_throughput"]["avg"],
    }


def guidellm(program: Path, url: str, folder: Path) -> Figures:
    report = folder / "guidellm.json"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"
    load = ("--profile", f"kind=concurrent,streams={CLIENTS}", "--data", data)
    limit = ("--constraint", f"kind=max_requests,count={REQUESTS}")
    where = ("--backend", f"kind=openai_http,target={url},model=scripted")
    words = ("--tokenizer", f"kind=huggingface_auto,model={DEMO_MODEL}")
    run(
        [
            str(program),
            "run",
            *where,
            *words,
            *load,
            *limit,
            "--disable-console",
            "--output",
            f"kind=json,path={report}",
        ]
    )
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]

    def of(name: str) -> dict[str, Any]:
        found: dict[str, Any] = metrics[name]["successful"]
        return found

    return {
        "ttft p50": of("time_to_first_token_ms")["percentiles"]["p50"],
        "ttft p99": of("time_to_first_token_ms")["percentiles"]["p99"],
        "itl mean": of("inter_token_latency_ms")["mean"],
        "request p50": of("request_latency")["percentiles"]["p50"] * 1e3,
        "request p99": of("request_latency")["percentiles"]["p99"] * 1e3,
        "output": of("output_tokens_per_second")["mean"],
    }


def run(command: list[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)} if command[0] == sys.executable else os.environ
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=environ, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{command[:3]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )


def table(rounds: dict[str, list[Figures]]) -> str:
    means = {name: {row: mean(one[row] for one in found) for row in UNITS} for name, found in rounds.items()}
    own, *others = means
    lines = ["| | script | " + " | ".join(means) + " | ours over the others |"]
    lines.append("|---" * (len(means) + 3) + "|")
    script = {"ttft p50": 1e3 * FIRST_S, "ttft p99": 1e3 * FIRST_S, "itl mean": 1e3 * GAP_S}
    script |= dict.fromkeys(("request p50", "request p99"), 1e3 * (FIRST_S + GAP_S * (TOKENS - 1)))
    script["output"] = 1e3 * CLIENTS * TOKENS / script["request p50"]
    for row, unit in UNITS.items():
        apart = ", ".join(f"{means[own][row] / means[other][row] - 1:+.1%}" for other in others)
        values = " | ".join(f"{found[row]:.1f}" for found in means.values())
        lines.append(f"| {row}, {unit} | {script[row]:.1f} | {values} | {apart} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--guidellm", type=Path, metavar="FILE", help="its program, in an environment of its own"
    )
    parser.add_argument(
        "--aiperf", type=Path, metavar="FILE", help="its program, in an environment of its own"
    )
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    measures: dict[str, Callable[[str, Path], Figures]] = {"Penstock": ours}
    if options.guidellm:
        measures["guidellm"] = lambda url, folder: guidellm(options.guidellm, url, folder)
    if options.aiperf:
        measures["aiperf"] = lambda url, folder: aiperf(options.aiperf, url, folder)
    rounds: dict[str, list[Figures]] = {name: [] for name in measures}
    with served() as url:
        for _ in range(options.rounds):
            for name, measure in measures.items():
                with TemporaryDirectory(prefix="penstock-generators-") as folder:
                    rounds[name].append(measure(url, Path(folder)))
                    print(name, rounds[name][-1], file=sys.stderr, flush=True)
    print(table(rounds))


if __name__ == "__main__":
    main()
