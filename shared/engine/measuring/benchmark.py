"""Measure how fast one engine is in this process: prefill of one prompt, decode of a full batch, and its
memory.

    python -m shared.engine.measuring.benchmark < case.json > figures.json

A process measures one case, so that its peak memory is that case's alone.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.engine import Engine, EngineConfig
from shared.engine.loading.config import ModelConfig, load_model_config
from shared.engine.measuring.limits import Limits, measure_limits
from shared.engine.measuring.model_work import StepWork, work_of
from shared.engine.results import StepResult
from shared.errors import InvalidRequest, PenstockError
from shared.sampling.parameters import SamplingParams

EXIT_INVALID = 2
WARM_UP_STEPS = 4
WARM_UP_PROMPT_TOKENS = 32
DEFAULT_BATCH_TOKENS = EngineConfig.__dataclass_fields__["max_batch_tokens"].default


@dataclass(frozen=True, slots=True)
class Case:
    """`engine` are fields of EngineConfig: model_dir, threads and what departs from the defaults."""

    engine: dict[str, Any]
    prompt_tokens: int
    output_tokens: int  # of each sequence; the first comes from the prompt, the others are timed
    batch: int
    repeats: int = 3

    def check(self, model: ModelConfig) -> None:
        """Raise InvalidRequest for a case that cannot be measured, before any weight is read."""
        for name, least in (("prompt_tokens", 1), ("output_tokens", 2), ("batch", 1), ("repeats", 1)):
            if getattr(self, name) < least:
                raise InvalidRequest(f"{name} must be at least {least}, not {getattr(self, name)}")
        generated, limit = self.longest_tokens - self.prompt_tokens, model.max_position_embeddings
        if self.longest_tokens > limit:
            raise InvalidRequest(
                f"a prompt of {self.prompt_tokens} tokens and {generated} generated ones at batch "
                f"{self.batch} do not fit the model's {limit} positions; ask for fewer"
            )

    @property
    def batch_tokens(self) -> int:
        """Rows of one step: twice the batch at least, so that prompts advance while sequences decode."""
        wanted: int = self.engine.get("max_batch_tokens", DEFAULT_BATCH_TOKENS)
        return max(wanted, 2 * self.batch)

    @property
    def longest_tokens(self) -> int:
        """A sequence's end: the first ones generate while the prompts of the last are still computed."""
        waiting = waiting_steps(self.batch * self.prompt_tokens, self.batch, self.batch_tokens)
        return self.prompt_tokens + self.output_tokens + waiting

    def make_engine(self) -> Engine:
        """An engine with room for exactly this, without a prefix cache: repeats must not meet old KV."""
        config = {
            "max_sequences": self.batch,
            **self.engine,
            "kv_blocks": (self.batch + 1) * (math.ceil(self.longest_tokens / HASH_BLOCK_TOKENS) + 1),
            "max_batch_tokens": self.batch_tokens,
            "prefix_cache": False,
        }
        return Engine(EngineConfig(**config))


class Runner:
    """Drives one engine through prefills and decodes with greedy draws; the engine is otherwise idle."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def prefill_s(self, prompt: list[int]) -> float:
        """Measure the time from the admission of one prompt, alone, to its first token."""
        began = time.perf_counter()
        self._admit("prefill", prompt, 1)
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, list[StepResult]]:
        """Seconds and results of `steps` steps in which every prompt's sequence decodes.

        Their prefill is not timed. Raises InvalidRequest when not all of them decode at once.
        """
        waiting = waiting_steps(sum(map(len, prompts)), len(prompts), self.engine.config.max_batch_tokens)
        keys = [f"decode-{index}" for index in range(len(prompts))]
        for key, prompt in zip(keys, prompts, strict=True):
            self._admit(key, prompt, 1 + waiting + steps)
        started: set[str] = set()
        while len(started) < len(keys):
            started.update(output.key for output in self.engine.step().outputs)
        began = time.perf_counter()
        results = [self.engine.step() for _ in range(steps)]
        elapsed_s = time.perf_counter() - began
        for key in keys:
            self.engine.release(key)
        if any(result.num_decode != len(keys) or result.num_prefill_tokens for result in results):
            raise InvalidRequest(
                f"not all of {len(keys)} sequences decoded in every step; measure a smaller batch"
            )
        return elapsed_s, results

    def _admit(self, key: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.admit(key, prompt, len(prompt), params)


def waiting_steps(prompt_tokens: int, batch: int, batch_tokens: int) -> int:
    """The most steps in which a batch's first sequences generate while its last prompts are computed.

    `prompt_tokens` are those of all prompts together. A chunk may end where its prompt does: each prompt but
    one can leave a step that is not full.
    """
    return math.ceil(prompt_tokens / (batch_tokens - batch)) + batch - 1


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one case. Rates and times are medians over the repeats, `_best` the best repeat.

    step_ms and overhead_ms (a step without the model's forward pass) are medians over all decode steps.
    *_per_s at the end are what the decode step and the prefill achieved of the two limits that follow:
    memory read, and operations in matrix products of the model's arithmetic.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    prefill_tokens_per_s: float
    prefill_tokens_per_s_best: float
    decode_tokens_per_s: float
    decode_tokens_per_s_best: float
    step_ms: float
    overhead_ms: float
    peak_rss_mb: float
    weight_mb: float
    kv_mb: float
    decode_gb_per_s: float
    decode_gop_per_s: float
    prefill_gop_per_s: float
    limit_gb_per_s: float
    limit_gop_per_s: float


def measure(case: Case) -> Figures:
    """Raises NotFound and InvalidRequest for a model or a case that cannot be."""
    config = load_model_config(case.engine["model_dir"], case.engine.get("dtype", "auto"))
    case.check(config)
    runner = Runner(case.make_engine())
    steps = case.output_tokens - 1
    random = Random(0)  # noqa: S311 (prompts, not secrets)

    def prompts(count: int, num_tokens: int) -> list[list[int]]:
        return [random.choices(range(config.vocab_size), k=num_tokens) for _ in range(count)]

    runner.prefill_s(*prompts(1, case.prompt_tokens))
    runner.decode(
        prompts(case.batch, min(case.prompt_tokens, WARM_UP_PROMPT_TOKENS)), min(steps, WARM_UP_STEPS)
    )
    prefill_s, decode_s, results = [], [], []
    for _ in range(case.repeats):
        prefill_s.append(runner.prefill_s(*prompts(1, case.prompt_tokens)))
        elapsed_s, timed = runner.decode(prompts(case.batch, case.prompt_tokens), steps)
        decode_s.append(elapsed_s)
        results += timed
    peak_rss_mb = read_peak_rss_mb()  # before the limits take memory of their own
    engine = runner.engine.config
    return _figures(
        case,
        work_of(engine, config, runner.engine.layout),
        measure_limits(engine.threads, engine.device),
        prefill_s,
        decode_s,
        results,
        peak_rss_mb,
    )


def _figures(
    case: Case,
    work: StepWork,
    limits: Limits,
    prefill_s: list[float],
    decode_s: list[float],
    results: list[StepResult],
    peak_rss_mb: float,
) -> Figures:
    step_s = statistics.median(result.step_us for result in results) / 1e6
    overhead_ms = statistics.median(result.step_us - result.model_us for result in results) / 1e3
    prompt, drawn = case.prompt_tokens, case.batch * (case.output_tokens - 1)
    context = case.longest_tokens - case.output_tokens // 2  # in the middle of the timed steps
    return Figures(
        batch=case.batch,
        prompt_tokens=prompt,
        output_tokens=case.output_tokens,
        prefill_tokens_per_s=prompt / statistics.median(prefill_s),
        prefill_tokens_per_s_best=prompt / min(prefill_s),
        decode_tokens_per_s=drawn / statistics.median(decode_s),
        decode_tokens_per_s_best=drawn / min(decode_s),
        step_ms=step_s * 1e3,
        overhead_ms=overhead_ms,
        peak_rss_mb=peak_rss_mb,
        weight_mb=work.held_bytes / 1e6,
        kv_mb=case.batch * case.longest_tokens * work.kv_token_bytes / 1e6,
        decode_gb_per_s=work.decode_bytes(case.batch, context) / step_s / 1e9,
        decode_gop_per_s=work.decode_operations(case.batch, context) / step_s / 1e9,
        prefill_gop_per_s=work.prefill_operations(prompt) / statistics.median(prefill_s) / 1e9,
        limit_gb_per_s=limits.read_bytes_per_s / 1e9,
        limit_gop_per_s=limits.operations_per_s[work.arithmetic] / 1e9,
    )


def read_peak_rss_mb() -> float:
    """The most memory that this process has held at once."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise InvalidRequest("this system does not tell a process's peak memory (VmHWM); measure on Linux")


def main() -> int:
    """One case from stdin, its figures to stdout; EXIT_INVALID and {"error": sentence} where it cannot be."""
    case = sys.stdin.read()
    if not case:  # whoever wants the figures ended before saying which
        return EXIT_INVALID
    try:
        figures = measure(Case(**json.loads(case)))
    except PenstockError as error:
        print(json.dumps({"error": str(error)}))
        return EXIT_INVALID
    print(json.dumps(asdict(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
