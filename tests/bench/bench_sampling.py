"""What it costs to draw a token for each of many rows, beside reading their logits once.

    python -m tests.bench.bench_sampling [--rows N] [--vocab N] [--threads N] [--flat]

Best of some rounds, which go through all settings in turns. What one thread takes is its CPU time, which
other work on the machine disturbs less. Rows are peaked, as a model's are, unless `--flat`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from shared.engine.sampling.draw import draw, native_sampler
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.id_bits import bits_of
from shared.sampling.parameters import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(temperature=1.0, seed=3)
SETTINGS = {
    "greedy": GREEDY,
    "temperature 1": PLAIN,
    "top-k 40": replace(PLAIN, top_k=40),
    "top-p 0.95": replace(PLAIN, top_p=0.95),
    "min-p 0.05": replace(PLAIN, min_p=0.05),
    "5 logprobs": replace(PLAIN, logprobs=5),
}
MASKED = "grammar mask"


def logits_of(options: argparse.Namespace) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(options.rows, options.vocab, generator=generator) * 2
    if not options.flat:
        logits += torch.rand(options.rows, options.vocab, generator=generator).pow(40) * 25
    return logits


def rows_of(name: str, options: argparse.Namespace) -> list[DrawRow]:
    allowed = bits_of(range(0, options.vocab, 7), options.vocab) if name == MASKED else None
    params = SETTINGS.get(name, PLAIN)
    return [DrawRow(params, place, (), None, allowed) for place in range(options.rows)]


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Best milliseconds by setting and way."""
    logits, best = logits_of(options), defaultdict[str, dict[str, float]](dict)
    names = [*SETTINGS, MASKED]

    def note(name: str, way: str, threads: int, work: Callable[[torch.Tensor], object]) -> None:
        torch.set_num_threads(threads)
        fresh = logits.clone()
        clock = time.perf_counter if threads > 1 else time.thread_time
        began = clock()
        work(fresh)
        took = 1e3 * (clock() - began)
        best[name][way] = min(best[name].get(way, took), took)

    for _ in range(options.rounds):
        note("read once", "1 thread", 1, torch.max)
        note("read once", "threads", options.threads, torch.max)
        for name in names:
            rows = rows_of(name, options)
            note(name, "threads", options.threads, partial(draw, rows=rows))
            note(name, "1 thread", 1, partial(draw, rows=rows))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--flat", action="store_true", help="rows of noise, the worst for top-p")
    options = parser.parse_args()
    if native_sampler() is None:
        parser.error("the C++ was not built, or this CPU cannot run it")
    best = measure(options)
    floor = best["read once"]
    for name, each in best.items():
        ways = [f"{way} {each[way]:8.2f} ms ({each[way] / floor[way]:5.1f} x)" for way in each]
        print(f"{name:14} {'   '.join(ways)}")


if __name__ == "__main__":
    main()
