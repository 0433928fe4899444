"""How many streams a pool holds where every layer has a window, or five of six, beside the same weights
without one.

    python -m tests.bench.bench_window [--tokens N] [--window N] [--kv-blocks N] [--threads N]

In process, on random weights that are made for the run. One prompt is computed and answered alone, for its
most blocks; then as many streams as decode workers would let in join, and all of them go on together. Blocks
are counted as if each had all layers.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors.torch import save_file

from shared.blocks.room import blocks_ahead
from shared.engine import Engine, EngineConfig, SamplingParams
from tests.bench.make_model import SHAPES, random_tensors

SHAPE = SHAPES["l100m"]
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
MIXED = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "no_rope_layers": [1] * SHAPE["num_hidden_layers"],
    "use_sliding_window": True,
    "layer_types": [
        "full_attention" if layer % 6 == 5 else "sliding_attention"
        for layer in range(SHAPE["num_hidden_layers"])
    ],
}
STEPS = 64
ANSWER = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
PROMISED = "promised"


@dataclass(frozen=True, slots=True)
class Figures:
    most_blocks: float
    """The most blocks of one sequence, from its prompt's begin to its answer's end."""
    promised_blocks: float
    """The blocks of a prompt whose KV is sent away, while it is computed."""
    sent_blocks: float
    """The blocks of them that are sent."""
    streams: int
    preemptions: int

    def __str__(self) -> str:
        return (
            f"{self.most_blocks:6.1f} blocks  {self.promised_blocks:6.1f} promised  "
            f"{self.sent_blocks:6.1f} sent  {self.streams:4} streams  {self.preemptions:3} gave way"
        )


def engine_of(folder: Path, options: argparse.Namespace, fields: dict[str, Any]) -> Engine:
    (folder / "config.json").write_text(json.dumps(SHAPE | fields), encoding="utf-8")
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
    admitted = engine.admit(PROMISED, prompt, len(prompt), ANSWER, stop_after=1, on_layer=lambda *_: None)
    promised = engine.held()[PROMISED]
    sent = sum(len(blocks) for blocks in admitted.tables) - sum(admitted.first_blocks)
    engine.release(PROMISED)
    streams = join_streams(engine, prompt)
    groups = engine.layout.groups.count
    return Figures(most / groups, promised / groups, sent / groups, streams, preemptions=run_steps(engine))


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
        window = {"sliding_window": options.window}
        for name, fields in (
            ("without", MISTRAL | {"sliding_window": None}),
            ("window", MISTRAL | window),
            ("mixed", MIXED | window),
        ):
            engine = engine_of(folder, options, fields)
            print(f"{name:8} {measure(engine, prompt)}", flush=True)
            engine.close()


if __name__ == "__main__":
    main()
