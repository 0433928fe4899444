"""Penstock's engine under the benchmark; see peer_protocol.py."""

from __future__ import annotations

import argparse
import math

from peer_protocol import serve

from shared.engine import Engine, EngineConfig
from shared.engine.measuring.benchmark import Runner


class Penstock:
    compiles = True  # kernels are chosen at the first call of a shape

    def __init__(self, options: argparse.Namespace) -> None:
        self.version = f"Penstock, weights {options.quantization}"
        engine = EngineConfig(
            options.model,
            dtype="bfloat16",
            quantization=options.quantization,
            threads=options.threads,
            max_sequences=options.max_batch,
            kv_blocks=math.ceil(options.max_tokens / 16) * options.max_batch,
            prefix_cache=False,
        )
        self._runner = Runner(Engine(engine))

    def prefill_s(self, prompt: list[int]) -> float:
        return self._runner.prefill_s(prompt)

    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        elapsed_s, _ = self._runner.decode(prompts, steps)
        return elapsed_s


if __name__ == "__main__":
    serve(Penstock)
