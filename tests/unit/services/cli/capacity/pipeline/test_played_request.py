"""The times of a request that was played."""

from __future__ import annotations

import math

import pytest

from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.pipeline.step_log import StepLog


def test_gaps_are_from_the_first_token_on_of_its_own_steps() -> None:
    log = StepLog()
    log.add(0.0, 1.0, 4)
    request = PlayedRequest(0.25, 10.0, 10.0, 3)
    request.first_s, request.steps, request.joined, request.end_s, request.way_s = 0.5, log, 1, 3.0, 0.125
    assert request.gaps_s().tolist() == pytest.approx([1.5, 1.0])
    assert request.tpot_s == pytest.approx(1.25)
    assert request.ttft_s == pytest.approx(0.375)
    assert request.e2e_s == pytest.approx(2.875)


def test_one_token_has_no_gaps() -> None:
    request = PlayedRequest(0.0, 10.0, 10.0, 1)
    assert request.gaps_s().tolist() == []
    assert math.isnan(request.tpot_s)
