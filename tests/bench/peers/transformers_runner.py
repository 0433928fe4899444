"""transformers' eager model under the benchmark, with greedy draws; see peer_protocol.py."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers
from peer_protocol import serve


class Transformers:
    compiles = True

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16, attn_implementation="sdpa"
        )

    @torch.inference_mode()
    def prefill_s(self, prompt: list[int]) -> float:
        began = time.perf_counter()
        self._step(torch.tensor([prompt]), None)
        return time.perf_counter() - began

    @torch.inference_mode()
    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        tokens, cache = self._step(torch.tensor(prompts), None)
        began = time.perf_counter()
        for _ in range(steps):
            tokens, cache = self._step(tokens, cache)
        return time.perf_counter() - began

    def _step(self, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """[B, T] -> the next tokens [B, 1] and the KV cache."""
        out = self._model(tokens, cache=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True), out.cache


if __name__ == "__main__":
    serve(Transformers)
