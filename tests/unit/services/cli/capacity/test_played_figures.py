"""Figures of requests that were played, by the definitions of `penstock bench serve`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.pipeline.step_log import StepLog
from services.cli.capacity.played_figures import PlayedFigures, figures_of_played


def played(first_s: float, step_s: float, tokens: int) -> PlayedRequest:
    """A request that comes at 0 and has its tokens in equal steps."""
    request, log = PlayedRequest(0.0, 10.0, 10.0, tokens), StepLog()
    if tokens > 1:
        log.add(first_s, step_s, tokens - 1)
    request.first_s, request.steps = first_s, log
    request.end_s = first_s + step_s * (tokens - 1)
    return request


def test_quantiles_are_by_nearest_rank_without_what_is_not_known() -> None:
    found = figures_of_played(np.array([0.3, math.nan, 0.1, 0.2]))
    assert found.count == 3
    assert found.mean == pytest.approx(200)
    assert found.quantiles["p50"].value == pytest.approx(200)
    assert found.quantiles["p99"].value == pytest.approx(300)
    assert math.isnan(figures_of_played(np.array([])).mean)


def test_good_requests_keep_each_objective_themselves() -> None:
    requests = [played(0.1, 0.01, 5), played(0.3, 0.01, 5), played(0.1, 0.03, 5), played(0.1, 0.0, 1)]

    def good(*levels: str) -> int:
        return PlayedFigures.of(requests, [ServiceLevel.read(level) for level in levels]).good

    assert good() == 4
    assert good("ttft_p99<200ms") == 3
    assert good("itl_p99<20ms") == 3
    assert good("ttft_p99<200ms", "itl_p50<20ms", "goodput>9") == 2
    assert good("tpot_p50<1ms") == 1
    assert PlayedFigures.of(requests, ()).latencies["itl"].count == 12
