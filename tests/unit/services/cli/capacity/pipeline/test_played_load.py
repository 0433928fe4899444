"""Loads are the same again each time."""

from __future__ import annotations

import pytest

from services.cli.bench.plan.lengths import TokenLengths
from services.cli.capacity.pipeline.played_load import load_at, steady_load
from services.cli.capacity.workload import Workload

LOAD = Workload.of_lengths(1.0, 1.0, TokenLengths(10, 500), TokenLengths(1, 50), cached_share=0.5)


def test_a_load_is_the_same_again_and_a_faster_one_is_the_same_faster() -> None:
    one, same, fast = (steady_load(LOAD, 500, rate) for rate in (2.0, 2.0, 8.0))
    facts = [(each.at_s, each.prompt_tokens, each.output_tokens) for each in one]
    assert facts == [(each.at_s, each.prompt_tokens, each.output_tokens) for each in same]
    assert [each.at_s / 4 for each in one] == pytest.approx([each.at_s for each in fast])
    assert [each.prompt_tokens for each in one] == [each.prompt_tokens for each in fast]
    assert one[-1].at_s == pytest.approx(250, rel=0.2)


def test_lengths_are_those_of_the_workload() -> None:
    requests = load_at(LOAD, [0.0] * 2000)
    mean = sum(each.prompt_tokens for each in requests) / len(requests)
    assert mean == pytest.approx(float(LOAD.input_tokens.mean()), rel=0.05)
    assert all(each.computed_tokens == max(1.0, each.prompt_tokens / 2) for each in requests)
    assert min(each.output_tokens for each in requests) == 1
