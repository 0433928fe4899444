"""Decode steps and prompts of two processes that share their cores, for several values of `prompt_weight`.

    python -m tests.bench.bench_core_sharing --model DIR [--weights 0,1,2,4] [--itl-target-ms MS]

Two engines, each in a process of its own with a slot on one board, and nothing else of the pipeline: 4
sequences decode, alone and then while 2048-token prompts are computed one after another. All weights take
their turn in every round; a cell is the median of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from shared.engine import Engine, EngineConfig
from shared.engine.core_arbiter import CoreArbiter, WorkClass
from shared.engine.step_pacer import ITL_TARGET_S
from shared.process.niceness import give_way
from shared.sampling.parameters import SamplingParams
from tests.bench.make_model import VOCAB_SIZE
from tests.support.percentile import percentile

SEQUENCES = 4
DECODE_PROMPT_TOKENS = 64
PROMPT_TOKENS = 2048
RANDOM = random.Random(0)


@dataclass(frozen=True, slots=True)
class Reading:
    """One weight in one round."""

    alone_p50_ms: float
    alone_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    prompt_ms: float


def engine_on(model: Path, slot: CoreArbiter) -> Engine:
    engine = Engine(EngineConfig(model_dir=str(model), threads=0, kv_memory_mb=256))
    engine.share_cores(slot)
    return engine


def random_prompt(tokens: int) -> list[int]:
    return [RANDOM.randrange(10, VOCAB_SIZE) for _ in range(tokens)]


def compute_prompts(pipe: Connection, model: Path, folder: Path) -> None:
    """In a process of its own: for every number received, so many prompts; answers with what each took."""
    engine = engine_on(model, CoreArbiter(WorkClass.PREFILL, folder))
    pipe.send([])
    while count := pipe.recv():
        took_ms = []
        for _ in range(count):
            began_s = time.perf_counter()
            engine.admit("prompt", random_prompt(PROMPT_TOKENS), PROMPT_TOKENS, greedy(1), stop_after=1)
            while engine.has_work:
                engine.step()
            took_ms.append(1e3 * (time.perf_counter() - began_s))
            engine.release("prompt")
        pipe.send(took_ms)


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def gaps_ms(engine: Engine, is_over: Callable[[], bool]) -> list[float]:
    """Between the ends of steps."""
    ends_s = [time.perf_counter()]
    while not is_over():
        engine.pause()
        engine.step()
        ends_s.append(time.perf_counter())
    return [1e3 * (after - before) for before, after in itertools.pairwise(ends_s)]


def measure(engine: Engine, pipe: Connection, options: argparse.Namespace) -> Reading:
    for number in range(SEQUENCES):
        prompt = random_prompt(DECODE_PROMPT_TOKENS)
        engine.admit(f"stream{number}", prompt, len(prompt), greedy(options.tokens))
    engine.step()
    ends_s = time.monotonic() + options.alone_s
    alone = gaps_ms(engine, lambda: time.monotonic() >= ends_s)
    pipe.send(options.prompts)
    beside = gaps_ms(engine, pipe.poll)
    took_ms = pipe.recv()
    for number in range(SEQUENCES):
        engine.release(f"stream{number}")
    return Reading(
        percentile(alone, 0.5),
        percentile(alone, 0.99),
        percentile(beside, 0.5),
        percentile(beside, 0.99),
        statistics.median(took_ms),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint, as make_model writes it")
    parser.add_argument("--weights", default="0,1,2,4,8", help="of a prompt beside a decoding request")
    parser.add_argument("--itl-target-ms", type=float, default=1000 * ITL_TARGET_S, metavar="MS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=2, help="in a round, beside the sequences")
    parser.add_argument("--alone-s", type=float, default=1.0, help="how long sequences are alone in a round")
    parser.add_argument("--tokens", type=int, default=7000, help="of each sequence, more than a round needs")
    return parser.parse_args()


def main() -> None:
    options = parse()
    weights = [float(weight) for weight in options.weights.split(",")]
    give_way()  # and so do all that are started from here
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="penstock-cores-") as name:
        folder = Path(name)
        pipe, theirs = context.Pipe()
        child = context.Process(target=compute_prompts, args=(theirs, options.model, folder), daemon=True)
        child.start()
        itl_target_s = options.itl_target_ms / 1000
        slots = {
            weight: CoreArbiter(WorkClass.DECODE, folder, prompt_weight=weight, itl_target_s=itl_target_s)
            for weight in weights
        }
        engine = engine_on(options.model, slots[weights[0]])
        pipe.recv()
        pipe.send(1)
        pipe.recv()
        rounds: dict[float, list[Reading]] = {weight: [] for weight in weights}
        for _ in range(options.rounds):
            for weight in weights:
                engine.share_cores(slots[weight])
                rounds[weight].append(measure(engine, pipe, options))
        pipe.send(0)
        child.join()
    print("| weight | alone p50 / p99 | beside prompts p50 / p99 | a prompt |")
    print("|---|---|---|---|")
    for weight, readings in rounds.items():
        alone, alone_p99, itl, itl_p99, prompt = (
            statistics.median(column) for column in zip(*map(astuple, readings), strict=True)
        )
        print(f"| {weight:g} | {alone:.1f} / {alone_p99:.1f} | {itl:.1f} / {itl_p99:.1f} | {prompt:.0f} ms |")


if __name__ == "__main__":
    main()
