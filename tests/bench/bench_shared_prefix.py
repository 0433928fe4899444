"""Prompts that come at once and begin alike: what they cost beside one of them, and without sharing.

    python -m tests.bench.bench_shared_prefix [--prompts N] [--prompt-tokens N] [--promised]

In process, on a random Llama that is made for the run. Every round computes prompts that nobody has seen: one
alone, then so many that differ in their last token, with the prefix cache and without it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from shared.engine import BLOCK_TOKENS, Engine, EngineConfig, SamplingParams
from tests.bench.make_model import SHAPES, random_tensors

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Round:
    """Until the last prompt has its first token."""

    tokens: int
    seconds: float


def compute(engine: Engine, prompts: list[list[int]], *, promised: bool) -> Round:
    for number, prompt in enumerate(prompts):
        stop_after = 1 if promised else None
        engine.admit(str(number), prompt, len(prompt), ONE_TOKEN, stop_after=stop_after)
    tokens, began = 0, time.perf_counter()
    while engine.has_work:
        tokens += engine.step().num_prefill_tokens
    seconds = time.perf_counter() - began
    for key in engine.held():
        engine.release(key)
    return Round(tokens, seconds)


def engine_of(folder: Path, options: argparse.Namespace, *, shares: bool) -> Engine:
    blocks = -(-options.prompt_tokens // BLOCK_TOKENS) + 1
    return Engine(
        EngineConfig(
            str(folder),
            threads=options.threads,
            kv_blocks=2 * blocks * options.prompts,
            max_batch_tokens=options.chunk,
            prefix_cache=shares,
        )
    )


def measure(folder: Path, options: argparse.Namespace) -> dict[str, list[Round]]:
    source, vocab = random.Random(1), SHAPES["l100m"]["vocab_size"]
    sharing, apart = engine_of(folder, options, shares=True), engine_of(folder, options, shares=False)
    rounds: dict[str, list[Round]] = {"one alone": [], "sharing": [], "without": []}
    for _ in range(options.rounds):
        alone, prefix = ([source.randrange(2, vocab) for _ in range(options.prompt_tokens)] for _ in range(2))
        prompts = [[*prefix[:-1], 2 + number] for number in range(options.prompts)]
        rounds["one alone"].append(compute(sharing, [alone], promised=options.promised))
        rounds["sharing"].append(compute(sharing, prompts, promised=options.promised))
        rounds["without"].append(compute(apart, prompts, promised=options.promised))
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=1601)
    parser.add_argument(
        "--promised", action="store_true", help="blocks are sent away, as prefill workers' are"
    )
    parser.add_argument("--chunk", type=int, default=512, help="max_batch_tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_file(random_tensors(SHAPES["l100m"], seed=0), folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(SHAPES["l100m"]), encoding="utf-8")
        rounds = measure(folder, options)
    alone_s = statistics.median(each.seconds for each in rounds["one alone"])
    for name, each in rounds.items():
        seconds = statistics.median(one.seconds for one in each)
        print(f"{name:10} {each[0].tokens:6} tokens  {1e3 * seconds:8.1f} ms  {seconds / alone_s:5.2f} x one")


if __name__ == "__main__":
    main()
