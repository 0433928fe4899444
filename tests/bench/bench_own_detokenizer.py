"""Compare a gateway with a detokenizer in its process with two processes: memory at rest, CPU of a token.

    python -m tests.bench.bench_own_detokenizer [--rounds N] [--streams N] [--seconds S] [--idle-s S]

A stack of each kind with the tests' 260 k-parameter model runs beside the other one, so that what else the
machine does disturbs both alike: first both rest, then each is loaded in turn by a client of its own
(`grpc_load`). The figures of a round are CPU microseconds of all processes of a stack per token; of several
rounds the median and the least are told, for both kinds and as a ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.bench_idle import processes_of, readings_of, shown, table
from tests.bench.bench_token_cost import stack_processes, under_load
from tests.support.models import target_model
from tests.support.stack import Stack

KINDS = {"two processes": "false", "one process": "true"}
"""The kinds of stacks, and what `own_detokenizer` is in each."""


def stack_of(own: str, options: argparse.Namespace) -> Stack:
    model = str(target_model(Path("/tmp/penstock-bench")))
    up = ("--model", model, "--corpus", "none", "--retriever", "0", "--draft", "none")
    return Stack(*up, environ={"PENSTOCK_GATEWAY_OWN_DETOKENIZER": own}, start_timeout_s=options.start_s)


def idle_tables(stacks: dict[str, Stack], seconds: float) -> dict[str, Any]:
    """Return what each process has and takes while nobody asks for anything."""
    processes = {kind: processes_of(stack) for kind, stack in stacks.items()}
    before, began_s = {kind: readings_of(each) for kind, each in processes.items()}, time.monotonic()
    time.sleep(seconds)
    after, took_s = {kind: readings_of(each) for kind, each in processes.items()}, time.monotonic() - began_s
    return {kind: table(before[kind], after[kind], took_s) for kind in stacks}


def compared(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the median and the least of all figures of a kind, and the ratio of one process to two."""
    figures: dict[str, dict[str, Any]] = {}
    for kind, each in rounds.items():
        all_us = [one["us_per_token"]["all"] for one in each]
        figures[kind] = {
            "us_per_token": {"median": statistics.median(all_us), "least": min(all_us)},
            "rounds": each,
        }
    two, one = (figures[kind]["us_per_token"] for kind in KINDS)
    return {**figures, "ratio": {name: one[name] / two[name] for name in two}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--warm-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--idle-s", type=float, default=30.0)
    parser.add_argument("--rest-s", type=float, default=20.0, help="how long the stacks come to rest")
    parser.add_argument("--start-s", type=float, default=240.0, help="how long a stack may take to start")
    options = parser.parse_args()
    with ExitStack() as open_stacks:
        stacks = {kind: open_stacks.enter_context(stack_of(own, options)) for kind, own in KINDS.items()}
        time.sleep(options.rest_s)
        for kind, rows in idle_tables(stacks, options.idle_s).items():
            print(shown(kind, rows), end="\n\n", flush=True)
        rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for _ in range(options.rounds):
            for kind, stack in stacks.items():
                rounds[kind].append(under_load(stack.grpc, stack_processes(stack), options))
    print(json.dumps(compared(rounds), indent=2))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
