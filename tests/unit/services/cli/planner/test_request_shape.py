"""Lengths as a workload: means, buckets of prompts, and what is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.request_shape import HALF_S, RequestShape


def answered(ended_s: float, count: float, prompt: float, output: float, **more: object) -> ArrivalWindow:
    return ArrivalWindow(ended_s, 10.0, count, count, count * prompt, 0.0, count * output, **more)  # type: ignore[arg-type]  # by name


def test_nothing_is_known_before_an_answer() -> None:
    shape = RequestShape()
    shape.add(ArrivalWindow(10.0, 10.0, 5.0))
    assert not shape.known


def test_a_workload_has_the_means_that_were_counted() -> None:
    shape = RequestShape()
    shape.add(answered(10.0, 8, 300, 50, prompt_lengths={128.0: 4, 2048.0: 4}))
    load = shape.workload(2.0)
    assert load.rate == 2.0
    assert load.input_tokens.mean() == pytest.approx(300, rel=0.01)
    assert load.mean_output_tokens == pytest.approx(50, rel=0.02)
    assert load.input_tokens.min() < 100
    assert load.input_tokens.max() > 500
    assert abs(np.corrcoef(load.input_tokens, load.output_tokens)[0, 1]) < 0.3


def test_the_part_of_prompts_that_was_cached_counts_as_found() -> None:
    shape = RequestShape()
    shape.add(ArrivalWindow(10.0, 10.0, 4, 4, 400.0, 100.0, 40.0))
    assert shape.workload(1.0).cached_share == 0.25


def test_what_was_answered_long_ago_counts_less() -> None:
    shape = RequestShape()
    shape.add(answered(10.0, 10, 100, 10))
    shape.add(answered(10.0 + HALF_S, 10, 400, 10))
    assert shape.mean_prompt_tokens == pytest.approx((50 * 10 + 400 * 10) / 15, rel=0.1)
    assert shape.mean_prompt_tokens == pytest.approx(300)
