"""How many streams a pool holds where every layer has a window, beside the same weights without one.

    python -m tests.bench.bench_window [--tokens N] [--window N] [--kv-blocks N] [--threads N]

In process, on a random Mistral that is made for the run. One prompt is computed and answered alone, for its
most blocks; then as many streams as decode workers would let in join, and all of them go on together.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from safetensors.torch import save_file

from shared.engine import Engine, EngineConfig, SamplingParams
from shared.kv_room import blocks_ahead
from tests.bench.make_model import SHAPES, random_tensors

SHAPE = SHAPES["l100m"] | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
STEPS = 64
ANSWER = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
PROMISED = "promised"


@dataclass(frozen=True, slots=True)
class Figures:
    most_blocks: int
    """Of one sequence, from its prompt's begin to its answer's end."""
    promised_blocks: int
    """Of a prompt whose KV is sent away, while it is computed."""
    streams: int
    preemptions: int

    def __str__(self) -> str:
        return (
            f"{self.most_blocks:5} blocks  {self.promised_blocks:5} promised  {self.streams:4} streams  "
            f"{self.preemptions:3} gave way"
        )


def engine_of(folder: Path, options: argparse.Namespace, window: int | None) -> Engine:
    (folder / "config.json").write_text(json.dumps(SHAPE | {"sliding_window": window}), encoding="utf-8")
    return Engine(
        EngineConfig(
            str(folder),
            threads=options.threads,
            kv_blocks=options.kv_blocks,
            max_sequences=512,
            prefix_cache=False,
        )
    )


def measure(engine: Engine, prompt: list[int]) -> Figures:
    engine.admit("alone", prompt, len(prompt), ANSWER)
    pool = engine.blocks
    most, allocate = pool.num_held, pool.allocate

    def allocate_and_look(count: int) -> list[int]:
        nonlocal most
        taken = allocate(count)
        most = max(most, pool.num_held)
        return taken

    with patch.object(pool, "allocate", allocate_and_look):
        run_steps(engine)
    engine.admit(PROMISED, prompt, len(prompt), ANSWER, stop_after=1, on_layer=lambda *_: None)
    promised = engine.held()[PROMISED]
    engine.release(PROMISED)
    streams = join_streams(engine, prompt)
    return Figures(most, promised, streams, preemptions=run_steps(engine))


def run_steps(engine: Engine) -> int:
    """To the end; how often a sequence gave way."""
    preemptions = 0
    while engine.has_work:
        preemptions += len(engine.step().preempted_keys)
    return preemptions


def join_streams(engine: Engine, prompt: list[int]) -> int:
    """As many as find room with what they come to next; their KV is zeros, which costs what other KV does."""
    streams = engine.config.kv_blocks // blocks_ahead(len(prompt), STEPS, engine.layout.groups.counts)
    for number in range(streams):
        engine.reserve(str(number), len(prompt), [])
        engine.attach(str(number), [*prompt, 1], len(prompt), ANSWER)
    return streams


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="of a prompt")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--kv-blocks", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    source = random.Random(1)
    prompt = [source.randrange(2, SHAPE["vocab_size"]) for _ in range(options.tokens)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_file(random_tensors(SHAPE, seed=0), folder / "model.safetensors", {"format": "pt"})
        for name, window in (("without", None), ("window", options.window)):
            engine = engine_of(folder, options, window)
            print(f"{name:8} {measure(engine, prompt)}", flush=True)
            engine.close()


if __name__ == "__main__":
    main()
