"""OpenVINO GenAI's continuous batching under the benchmark; see peer_protocol.py."""

from __future__ import annotations

import argparse
import math
import time

import openvino as ov  # type: ignore[import-not-found]  # only in this peer's environment
import openvino_genai as genai  # type: ignore[import-not-found]  # only in this peer's environment
from peer_protocol import serve

CHUNK_TOKENS = 4096
KV_CACHE_GB = 1


class OpenVino:
    compiles = True

    def __init__(self, options: argparse.Namespace) -> None:
        self.version = f"OpenVINO GenAI {genai.__version__}"
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = KV_CACHE_GB
        scheduler.max_num_batched_tokens = CHUNK_TOKENS
        scheduler.max_num_seqs = options.max_batch
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": options.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
        self._requests = 0

    def prefill_s(self, prompt: list[int]) -> float:
        began = time.perf_counter()
        handle = self._add(prompt, 1)  # a request whose handle is dropped is cancelled
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        elapsed_s = time.perf_counter() - began
        assert handle.can_read(), "the prompt was not computed"
        return elapsed_s

    def decode_s(self, prompts: list[list[int]], steps: int) -> float:
        waiting = math.ceil(sum(map(len, prompts)) / CHUNK_TOKENS)
        handles = [self._add(prompt, steps + 1 + waiting) for prompt in prompts]
        started: set[int] = set()
        while len(started) < len(handles):
            self._pipeline.step()
            started.update(index for index, handle in enumerate(handles) if handle.can_read())
        began = time.perf_counter()
        for _ in range(steps):
            self._pipeline.step()
        elapsed_s = time.perf_counter() - began
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        drawn = [len(outputs[0].generated_ids) for outputs in (handle.read_all() for handle in handles)]
        assert min(drawn) >= 1 + steps, f"sequences ended while they were timed: {drawn}"
        return elapsed_s

    def _add(self, prompt: list[int], new_tokens: int) -> genai.GenerationHandle:
        config = genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        self._requests += 1
        return self._pipeline.add_request(self._requests, ov.Tensor([prompt]), config)


if __name__ == "__main__":
    serve(OpenVino)
