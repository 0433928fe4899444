from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.loading.config import load_model_config
from shared.engine.measuring import limits
from shared.engine.measuring.benchmark import Case, Runner, read_peak_rss_mb, waiting_steps
from shared.errors import InvalidRequest


def case(model_dir: Path, **fields: Any) -> Case:
    engine = {"model_dir": str(model_dir), "max_batch_tokens": 8}
    return Case(
        **{"engine": engine, "prompt_tokens": 20, "output_tokens": 5, "batch": 3, "repeats": 1, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"output_tokens": 1}, "output_tokens must be at least 2"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"prompt_tokens": 256}, "256 positions; ask for fewer"),
    ],
)
def test_a_case_that_cannot_be_measured_is_refused(
    model_dir: Path, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        case(model_dir, **fields).check(load_model_config(model_dir))


def test_every_timed_step_decodes_the_whole_batch_although_prompts_come_in_chunks(model_dir: Path) -> None:
    asked = case(model_dir)
    runner = Runner(asked.make_engine())
    _, steps = runner.decode([list(range(20)), list(range(20)), list(range(20))], 4)
    assert [(step.num_decode, step.num_prefill_tokens) for step in steps] == [(3, 0)] * 4


def test_nothing_is_held_after_prefill_and_decode(model_dir: Path) -> None:
    runner = Runner(case(model_dir).make_engine())
    runner.prefill_s(list(range(20)))
    runner.decode([[1, 2], [3, 4]], 2)
    assert runner.engine.held() == {}
    runner.engine.check()


def test_a_batch_that_does_not_decode_at_once_is_refused(model_dir: Path) -> None:
    runner = Runner(case(model_dir).make_engine())
    near_the_end = list(range(90)) * 3
    with pytest.raises(InvalidRequest, match="measure a smaller batch"):
        runner.decode([near_the_end[: runner.engine.max_model_len - 2]], 4)


def test_prompts_wait_as_many_steps_as_their_chunks_need() -> None:
    assert waiting_steps(60, 3, 8) == 12 + 2  # two prompts end in steps that are not full
    assert waiting_steps(512, 1, 512) == 2


def test_the_peak_of_memory_is_at_least_what_is_held_now() -> None:
    held = torch.ones(10_000_000)
    assert read_peak_rss_mb() > held.nbytes / 1e6


def test_limits_are_rates_of_reading_and_of_every_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "MATMUL_SIZE", 64)
    measured = limits.measure_limits(threads=1)
    assert measured.read_bytes_per_s > 0
    assert set(measured.operations_per_s) == {"float32", "bfloat16", "int8"}
    assert min(measured.operations_per_s.values()) > 0
