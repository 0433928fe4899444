"""What the cache of weights saves: time from start to a loaded model, memory of two processes that have it.

    python -m tests.bench.bench_load [--model DIR | --shape NAME] [--quantization none|int8|int4] [--rounds N]

Each process imports what the decode service does and loads the model; two of them are then alive together.
The rows take turns in one run. PSS counts what processes share once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file

from tests.bench.make_model import SHAPES, random_tensors
from tests.bench.process_cost import pss_mb
from tests.support.data import REPOSITORY

ROWS = ("no model", "no cache", "empty cache", "full cache")
CHILD = """
import json, sys, time
started = time.perf_counter()
import torch
torch_s = time.perf_counter() - started
import services.decode.__main__
from shared.engine import Engine, EngineConfig
imports_s = time.perf_counter() - started
fields = json.loads(sys.argv[1])
engine = Engine(EngineConfig(**fields)) if fields else None
load_s = time.perf_counter() - started - imports_s
print(json.dumps({"torch_s": torch_s, "imports_s": imports_s, "load_s": load_s}), flush=True)
sys.stdin.read()
"""
"""It stays until its input ends."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Of the first process alone, and of both while they live."""

    ready_s: float
    torch_s: float
    imports_s: float
    load_s: float
    second_load_s: float
    pss_mb: float


@contextmanager
def started(fields: dict[str, object]) -> Iterator[tuple[dict[str, float], float, int]]:
    """What a new process says when it is ready, after how many seconds, and its id."""
    begun = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(fields)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    try:
        said: dict[str, float] = json.loads(child.stdout.readline())
        yield said, time.perf_counter() - begun, child.pid
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()


def measure(fields: dict[str, object]) -> Loaded:
    with ExitStack() as stack:
        first, ready_s, first_pid = stack.enter_context(started(fields))
        second, _, second_pid = stack.enter_context(started(fields))
        memory = pss_mb(first_pid) + pss_mb(second_pid)
        return Loaded(
            ready_s, first["torch_s"], first["imports_s"], first["load_s"], second["load_s"], memory
        )


def rounds(model: Path, quantization: str, count: int) -> dict[str, list[Loaded]]:
    plain: dict[str, object] = {
        "model_dir": str(model),
        "quantization": quantization,
        "kv_blocks": 64,
        "backend": "native",
    }
    found: dict[str, list[Loaded]] = {row: [] for row in ROWS}
    for _ in range(count):
        with TemporaryDirectory() as folder:
            cached = {**plain, "weight_cache_dir": folder, "weight_cache_mb": 1 << 20}
            for row, fields in zip(ROWS, ({}, plain, cached, cached), strict=True):
                found[row].append(measure(fields))
    return found


def show(found: dict[str, list[Loaded]]) -> None:
    best = {
        row: {
            name: statistics.median(getattr(each, name) for each in loads)
            for name in Loaded.__dataclass_fields__
        }
        for row, loads in found.items()
    }
    plain = best["no cache"]
    print("| | start → loaded s | import torch | all imports | load s | second's load s | PSS of two MB |")
    print("|---|---|---|---|---|---|---|")
    for row, value in best.items():
        print(
            f"| {row} | {value['ready_s']:.2f} | {value['torch_s']:.2f} | {value['imports_s']:.2f} "
            f"| {value['load_s']:.3f} | {value['second_load_s']:.3f} | {value['pss_mb']:.0f} |"
        )
    full, bare = best["full cache"], best["no model"]
    print(f"\nload: {full['load_s'] / plain['load_s']:.3f} of that without the cache")
    print(f"start → loaded: {full['ready_s'] / plain['ready_s']:.2f}")
    print(
        f"memory over no model: {(full['pss_mb'] - bare['pss_mb']) / (plain['pss_mb'] - bare['pss_mb']):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a checkpoint; one of --shape is made otherwise")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="l100m")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            model = Path(folder)
            config = SHAPES[options.shape]
            save_file(random_tensors(config, 0), model / "model.safetensors", metadata={"format": "pt"})
            (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        show(rounds(model, options.quantization, options.rounds))


if __name__ == "__main__":
    main()
