"""What long prompts do to live streams: p99 time between tokens while they arrive, against none arriving.

    python -m tests.bench.bench_head_of_line [--streams N] [--prompt-tokens N] [--max-step-ms MS] [--json]

In process, on a random Llama that is made for the run (100 M parameters; the shape has flags). Three phases
on one checkpoint: streams alone; with prompts, steps of any length; with prompts, steps of at most
`max_step_ms` (default: twice the median step of the streams alone). The next prompt arrives when the one
before is computed.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from shared.engine import BLOCK_TOKENS, Engine, EngineConfig, SamplingParams
from tests.bench.make_model import SHAPES, random_tensors
from tests.support.percentile import percentile

WARM_STEPS = 20
STREAM_PROMPT_TOKENS = 128
MAX_STREAM_TOKENS = 6000  # more than any phase draws
STREAM = SamplingParams(temperature=0.0, max_tokens=MAX_STREAM_TOKENS, ignore_eos=True)
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Phase:
    """Times between tokens of the streams, and how fast prompts went beside them."""

    name: str
    tokens: int
    itl_p50_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    prompts: int
    prefill_tokens_per_s: float


class Bench:
    """One engine with live streams."""

    def __init__(self, folder: Path, options: argparse.Namespace, max_step_ms: float) -> None:
        tokens = (
            options.streams * (STREAM_PROMPT_TOKENS + MAX_STREAM_TOKENS)
            + options.prompt_tokens
            + BLOCK_TOKENS
        )
        self._random = random.Random(1)
        self._options = options
        self._engine = Engine(
            EngineConfig(
                str(folder),
                dtype=options.dtype,
                backend=options.backend,
                kv_dtype=options.kv_dtype,
                quantization=options.quantization,
                threads=options.threads,
                kv_blocks=-(-tokens // BLOCK_TOKENS) + options.streams + 1,
                max_batch_tokens=options.chunk,
                prefix_cache=False,
                max_step_ms=max_step_ms,
            )
        )
        for number in range(options.streams):
            self._engine.admit(
                f"stream-{number}", self._ids(STREAM_PROMPT_TOKENS), STREAM_PROMPT_TOKENS, STREAM
            )
        for _ in range(WARM_STEPS):
            self._engine.step()

    def run(self, name: str, prompts: int) -> Phase:
        """Until so many prompts are computed, or for the configured seconds without any."""
        last = dict.fromkeys((f"stream-{number}" for number in range(self._options.streams)), 0.0)
        gaps_ms: list[float] = []
        computed, done, prompt_tokens = 0, 0, self._options.prompt_tokens
        began = time.perf_counter()
        while done < prompts if prompts else time.perf_counter() - began < self._options.seconds:
            if done < prompts and f"prompt-{done}" not in self._engine.held():
                self._engine.admit(f"prompt-{done}", self._ids(prompt_tokens), prompt_tokens, ONE_TOKEN)
            result = self._engine.step()
            computed += result.num_prefill_tokens
            now = time.perf_counter()
            for output in result.outputs:
                if output.key not in last:
                    done += 1
                    continue
                if last[output.key]:
                    gaps_ms += [1e3 * (now - last[output.key])]
                last[output.key] = now
        p50, p99 = (percentile(gaps_ms, share) for share in (0.5, 0.99))
        speed = computed / (time.perf_counter() - began)
        return Phase(name, len(gaps_ms), p50, p99, max(gaps_ms), done, speed)

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(2, self._options.vocab) for _ in range(count)]


def save_model(folder: Path, options: argparse.Namespace) -> None:
    config: dict[str, Any] = {
        **SHAPES["l100m"],
        "num_hidden_layers": options.layers,
        "hidden_size": options.hidden,
        "intermediate_size": options.intermediate,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.hidden // options.heads,
        "vocab_size": options.vocab,
    }
    save_file(random_tensors(config, seed=0), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def phases(options: argparse.Namespace) -> Iterator[Phase]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_model(folder, options)
        bench = Bench(folder, options, 0.0)
        alone = bench.run("streams alone", 0)
        yield alone
        yield bench.run("with prompts, any step", options.prompts)
        del bench
        limit_ms = options.max_step_ms or 2 * alone.itl_p50_ms
        limited = Bench(folder, options, limit_ms)
        yield limited.run(f"with prompts, steps of {limit_ms:.1f} ms", options.prompts)


def main() -> None:
    shape = SHAPES["l100m"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=shape["num_hidden_layers"])
    parser.add_argument("--hidden", type=int, default=shape["hidden_size"])
    parser.add_argument("--intermediate", type=int, default=shape["intermediate_size"])
    parser.add_argument("--heads", type=int, default=shape["num_attention_heads"])
    parser.add_argument("--kv-heads", type=int, default=shape["num_key_value_heads"])
    parser.add_argument("--vocab", type=int, default=shape["vocab_size"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--prompts", type=int, default=2, help="prompts that arrive, one after the other")
    parser.add_argument("--chunk", type=int, default=512, help="max_batch_tokens")
    parser.add_argument("--seconds", type=float, default=10.0, help="of streams alone")
    parser.add_argument("--max-step-ms", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="one object per phase")
    options = parser.parse_args()
    alone: Phase | None = None
    for phase in phases(options):
        alone = alone or phase
        ratio = phase.itl_p99_ms / alone.itl_p99_ms
        if options.json:
            print(json.dumps({**asdict(phase), "p99_ratio": ratio}))
        else:
            print(
                f"{phase.name:36} itl p50 {phase.itl_p50_ms:7.1f}  p99 {phase.itl_p99_ms:7.1f}  "
                f"max {phase.itl_max_ms:7.1f} ms   p99 x {ratio:5.2f}   "
                f"prefill {phase.prefill_tokens_per_s:6.0f} tokens/s"
            )


if __name__ == "__main__":
    main()
