"""How far `penstock capacity` is from what `penstock bench serve` measures, over mixes of instances.

    python -m tests.bench.bench_capacity measure --model FILE --folder DIR --rates 2,3,4 [--transport shm]
    python -m tests.bench.bench_capacity table --folder DIR

`measure` starts a stack of each mix of prefill and decode workers and puts a Poisson load of each rate on it. The
profile is made of the first mix alone, with other loads: prompts one at a time, and answers of so many clients
behind short prompts. What lies in the folder is not measured again, so that a long table can be made in pieces
(`--budget`). `table` predicts every point from that profile, and sets it beside what was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.process_cost import cpu_s
from tests.support.data import REPOSITORY
from tests.support.stack import Stack

INPUT_TOKENS = 128
OUTPUT_TOKENS = 32
SHORT_PROMPT_TOKENS = 16
LONG_ANSWER_TOKENS = 64
FIT_CLIENTS = (1, 2, 4, 8)
FIT_S = 4.0
POINT_S = 10.0
FIGURES = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "output_tokens_per_s")
WITHIN = {"ttft_p50": 0.10, "itl_p50": 0.10, "e2e_p50": 0.10, "output_tokens_per_s": 0.10}
WITHIN_TAIL = 0.20
SETTINGS = {
    "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
    "PENSTOCK_DECODE_NGRAM_TOKENS": "0",
}
"""What a prediction leaves out is off: prompts on decode workers, drafts."""
TEXTS = itertools.count(1)
"""Each load has texts of its own: else their KV would be found."""


@dataclass(frozen=True, slots=True)
class Mix:
    prefill: int
    decode: int

    @property
    def name(self) -> str:
        return f"{self.prefill}x{self.decode}"

    @classmethod
    def read(cls, text: str) -> Mix:
        prefill, _, decode = text.partition("x")
        return cls(int(prefill), int(decode))


def measure(options: argparse.Namespace) -> None:
    """Measure what is missing until the budget is spent; exit code 3 where something is left."""
    ends_s = time.monotonic() + options.budget
    options.folder.mkdir(parents=True, exist_ok=True)
    for number, mix in enumerate(options.mixes):
        points = [_point_file(options, mix, rate) for rate in options.rates]
        fit = number == 0 and not _profile_file(options).exists()
        if not fit and all(point.exists() for point in points):
            continue
        if time.monotonic() > ends_s:
            raise SystemExit(3)
        with _stack(options, mix) as stack:
            _load(stack, "--concurrency", "1", "--duration", "3", "--input-tokens", str(INPUT_TOKENS))
            if fit:
                _profile_file(options).write_text(json.dumps(_fitted(stack, options.folder), indent=1))
            for rate, point in zip(options.rates, points, strict=True):
                if not point.exists() and time.monotonic() < ends_s:
                    _load(stack, *_point_load(rate), "--json", str(point))
                    print(f"{options.transport} {mix.name} {rate:g}/s measured", file=sys.stderr)


def _stack(options: argparse.Namespace, mix: Mix) -> Stack:
    roles = (
        "--prefill",
        str(mix.prefill),
        "--decode",
        str(mix.decode),
        "--retriever",
        "0",
        "--speculator",
        "0",
    )
    up = ("--model", str(options.model), "--draft", "none", "--corpus", "none", *roles)
    return Stack(*up, "--kv-transport", options.transport, environ=SETTINGS)


def _point_load(rate: float) -> tuple[str, ...]:
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    return ("--rate", str(rate), "--duration", str(POINT_S), *lengths)


def _load(stack: Stack, *words: str) -> None:
    """Put a load on the stack by the command that users have."""
    options = ("--interface", "completions", "--ignore-eos", "--grpc", stack.grpc)
    options = (*options, "--text-seed", str(next(TEXTS)))
    _penstock("bench", "serve", *options, *words)


def _penstock(*words: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "services.cli", *words]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _fitted(stack: Stack, folder: Path) -> dict[str, Any]:
    """Return a profile of two watches: prompts alone, and answers alone of 1 to 8 clients."""
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", "1")
    prompts = _watched(stack, folder / "prompts.json", [("--concurrency", "1", *lengths)])
    lengths = ("--input-tokens", str(SHORT_PROMPT_TOKENS), "--output-tokens", str(LONG_ANSWER_TOKENS))
    loads = [("--concurrency", str(clients), *lengths) for clients in FIT_CLIENTS]
    answers = _watched(stack, folder / "answers.json", loads)
    profile = answers["profile"]
    profile["prefill"] = prompts["profile"]["prefill"]
    profile["prefill"]["overhead_ms"] = 0.0
    profile["gateway"]["overhead_ms"] = prompts["profile"]["gateway"]["overhead_ms"]
    return {"profile": profile, "prompts": prompts, "answers": answers}


def _watched(stack: Stack, out: Path, loads: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a profile of the stack under these loads, one after another, and what they cost."""
    watch_s = len(loads) * (FIT_S + 3.0)
    command = ("capacity", "profile", "--out", str(out), "--watch", str(watch_s))
    watching = subprocess.Popen(
        [sys.executable, "-m", "services.cli", *command, "--state-dir", str(stack.state_dir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2.0)  # it collects the fleet first
    before = dict(_costs(stack))
    reports = []
    for number, load in enumerate(loads):
        report = out.with_suffix(f".{number}.json")
        _load(stack, *load, "--duration", str(FIT_S), "--json", str(report))
        reports.append(json.loads(report.read_text()))
    after = dict(_costs(stack))
    watching.communicate()
    summaries = [report["summary"] for report in reports]
    calls = sum(summary["calls"] for summary in summaries)
    client_s = sum(summary["generator"]["cpu_share"] * summary["seconds"] for summary in summaries)
    return {
        "profile": json.loads(out.read_text()),
        "loads": [
            {
                "options": list(load),
                "calls": summary["calls"],
                "seconds": summary["seconds"],
                "output_tokens_per_s": summary["rates"]["output_tokens_per_s"],
                "ttft_p50": summary["latencies_ms"]["ttft"]["p50"]["value"],
                "itl_p50": summary["latencies_ms"]["itl"]["p50"]["value"],
                "phases": {name: found["p50"]["value"] for name, found in summary["phases_ms"].items()},
            }
            for load, summary in zip(loads, summaries, strict=True)
        ],
        "calls": calls,
        "output_tokens": sum(s["rates"]["output_tokens_per_s"] * s["seconds"] for s in summaries),
        "cpu_ms": {name: (after[name] - spent) * 1e3 for name, spent in before.items()},
        "client_cpu_ms": client_s * 1e3,
    }


def _costs(stack: Stack) -> Iterator[tuple[str, float]]:
    """Yield the CPU of each service so far; of workers that of their loop and of all their threads."""
    for instance in stack.instances():
        yield instance.id, cpu_s(instance.pid)
        yield f"{instance.id}/loop", _thread_cpu_s(instance.pid, instance.pid)
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid,comm"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        pid, parent, name = line.split(maxsplit=2)
        if name.startswith("nats-server") and parent == str(stack.process.pid):
            yield "nats", cpu_s(int(pid))


def _thread_cpu_s(pid: int, thread: int) -> float:
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _profile_file(options: argparse.Namespace) -> Path:
    return Path(options.folder / f"fit-{options.transport}.json")


def _point_file(options: argparse.Namespace, mix: Mix, rate: float) -> Path:
    return Path(options.folder / f"point-{options.transport}-{mix.name}-{rate:g}.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--transport", choices=("shm", "nats"), default="shm")
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")])
    every = [Mix(prefill, decode) for prefill in (1, 2, 3) for decode in (1, 2, 3)]
    parser.add_argument(
        "--mixes", type=lambda text: [Mix.read(one) for one in text.split(",")], default=every
    )
    parser.add_argument("--budget", type=float, default=380.0, metavar="S", help="begin nothing later")
    options = parser.parse_args()
    measure(options) if options.what == "measure" else None


if __name__ == "__main__":
    main()
