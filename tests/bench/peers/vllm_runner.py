"""vLLM on the CPU under the benchmark, its engine in this process; see peer_protocol.py."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

from peer_protocol import serve

CHUNK_TOKENS = 4096
KV_CACHE_GB = 1


class Vllm:
    compiles = True

    def __init__(self, options: argparse.Namespace) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{options.threads - 1}"  # else it keeps one core free
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(KV_CACHE_GB)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        import vllm  # type: ignore[import-not-found]  # noqa: PLC0415 - reads the variables above

        self.version = f"vLLM {vllm.__version__}"
        self._sampling = vllm.SamplingParams
        self._engine = vllm.LLM(
            options.model,
            dtype="bfloat16",
            max_model_len=max(CHUNK_TOKENS, options.max_tokens),
            max_num_batched_tokens=CHUNK_TOKENS,
            max_num_seqs=options.max_batch,
            enable_prefix_caching=False,
        ).llm_engine
        self._requests = 0

    def prefill_s(self, prompt: list[int]) -> float:
        began = time.perf_counter()
        self._add(prompt, 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - began

    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        waiting = math.ceil(sum(map(len, prompts)) / CHUNK_TOKENS)
        for prompt in prompts:
            self._add(prompt, steps + 1 + waiting)
        started: set[str] = set()
        while len(started) < len(prompts):
            started.update(output.request_id for output in self._engine.step())
        began = time.perf_counter()
        live = [len(self._engine.step()) for _ in range(steps)]
        elapsed_s = time.perf_counter() - began
        assert live == [len(prompts)] * steps, f"sequences ended while they were timed: {live}"
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return elapsed_s

    def _add(self, prompt: list[int], new_tokens: int) -> None:
        sampling = self._sampling(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        self._requests += 1
        self._engine.add_request(str(self._requests), {"prompt_token_ids": prompt}, sampling)


def preload_openmp() -> None:
    """Start again with the OpenMP runtime that vLLM's documentation asks for: it must be there first."""
    runtime = Path(sys.prefix) / "lib" / "libiomp5.so"
    if runtime.exists() and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = str(runtime)
        os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    preload_openmp()
    serve(Vllm)
