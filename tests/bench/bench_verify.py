"""Measure what rows that verify drafts cost: steps of 1 to 8 rows a sequence, in turns, and their parts.

    python -m tests.bench.bench_verify --model FILE [--batch 1,8] [--context 128,1024,4096] [--rows 1,5,8]
                                       [--rounds N] [--threads N] [--quant KIND] [--json]

CPU time of the process, medians of `rounds` in which all take their turns, over a pool filled with random
keys and values, so that no prompt is computed. A step is a forward pass and the draws of all its rows. Of the
parts, `head` is what a step takes longer for logits of all rows than for those of one a sequence, `draws` the
sampler, and `keys` what it takes longer than with a context of 16; `rest` is all else: products, norms,
rounding rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.engine.model_runner import ModelInput, ModelRunner
from shared.engine.sampling.draw import draw
from shared.engine.sampling.draw_row import DrawRow

SHORT_CONTEXT = 16
BF16_ONE = 0x3F80
SLACK_BLOCKS = 2


class Steps:
    """Steps of sequences of one length over a pool of numbers."""

    def __init__(self, engine: Engine, batch: int, context: int, blocks: int) -> None:
        self._runner = ModelRunner(engine._model)
        self._vocabulary = engine.model_config.vocab_size
        self._batch = batch
        self._context = context
        self._blocks = blocks
        self._random = Random(1)

    def run(self, rows: int, *, all_logits: bool = True) -> tuple[float, float]:
        """Return the ms of a forward pass of so many rows a sequence, and of the draws."""
        num_logits = rows if all_logits else 1
        inputs = [
            ModelInput(
                self._random.choices(range(self._vocabulary), k=rows),
                self._context,
                [list(range(each * self._blocks, (each + 1) * self._blocks))],
                num_logits,
            )
            for each in range(self._batch)
        ]
        params = SamplingParams(temperature=0.0)
        draws = [
            DrawRow(params, self._context + row) for _ in range(self._batch) for row in range(num_logits)
        ]
        began_ns = time.process_time_ns()
        logits = self._runner.compute_logits(inputs)
        computed_ns = time.process_time_ns()
        draw(logits, draws)
        return (computed_ns - began_ns) / 1e6, (time.process_time_ns() - computed_ns) / 1e6


class Kind(NamedTuple):
    """Steps of so many rows a sequence, as they are, or without the part that `without` names."""

    rows: int
    without: str = ""


def medians_in_turns(
    runs: dict[Kind, Callable[[], tuple[float, float]]], rounds: int
) -> dict[Kind, tuple[float, float]]:
    found: dict[Kind, list[tuple[float, float]]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(runs[name]())
    return {
        name: (statistics.median(a for a, _ in each), statistics.median(b for _, b in each))
        for name, each in found.items()
    }


def measure(
    engine: Engine, batch: int, context: int, blocks: int, options: argparse.Namespace
) -> dict[int, dict[str, float]]:
    """Return, by rows of a sequence, ms of a step, times a step of one row, and ms of its parts."""
    rows = [int(part) for part in options.rows.split(",")]
    steps = Steps(engine, batch, context, blocks)
    short = Steps(engine, batch, SHORT_CONTEXT, blocks)
    runs: dict[Kind, Callable[[], tuple[float, float]]] = {}
    for num in rows:
        runs[Kind(num)] = partial(steps.run, num)
        runs[Kind(num, "head")] = partial(steps.run, num, all_logits=False)
        runs[Kind(num, "keys")] = partial(short.run, num)
    medians = medians_in_turns(runs, options.rounds)
    first = sum(medians[Kind(rows[0])])
    found = {}
    for num in rows:
        model, draws = medians[Kind(num)]
        parts = {
            "head": model - medians[Kind(num, "head")][0],
            "draws": draws,
            "keys": model - medians[Kind(num, "keys")][0],
        }
        rest = model - parts["head"] - parts["keys"]
        found[num] = {"step": model + draws, "times": (model + draws) / first, **parts, "rest": rest}
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder or GGUF file")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", default="128,1024,4096")
    parser.add_argument("--rows", default="1,2,3,4,5,8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quant", default="none", help="of a folder: none, int8 or int4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    batches = [int(part) for part in options.batch.split(",")]
    contexts = [int(part) for part in options.context.split(",")]
    blocks = max(contexts) // 16 + SLACK_BLOCKS
    engine = Engine(
        EngineConfig(
            str(options.model),
            threads=options.threads,
            quantization=options.quant,
            kv_blocks=max(batches) * blocks,
            max_sequences=max(batches),
            max_model_len=16 * blocks,
        )
    )
    pool = np.frombuffer(engine.kv_pool.memory, np.uint16)
    pool[:] = np.random.default_rng(0).integers(BF16_ONE - 64, BF16_ONE, len(pool), np.uint16)
    found = {
        f"b{batch} at {context}": measure(engine, batch, context, blocks, options)
        for batch in batches
        for context in contexts
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("CPU ms        rows    step  times    head   draws    keys    rest")
    for name, by_rows in found.items():
        for num, row in by_rows.items():
            print(
                f"{name:13} {num:4} {row['step']:7.2f} {row['times']:6.2f} {row['head']:7.2f}"
                f" {row['draws']:7.2f} {row['keys']:7.2f} {row['rest']:7.2f}"
            )


if __name__ == "__main__":
    main()
