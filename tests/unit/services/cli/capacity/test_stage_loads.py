"""Loads of stages, and who waited there."""

from __future__ import annotations

import pytest

from services.cli.capacity.pipeline.played_load import load_at
from services.cli.capacity.profile import InstanceCounts
from services.cli.capacity.stage_loads import StageWait, prompt_s, stage_waits, utilizations
from tests.unit.services.cli.capacity.deployments import PROFILE, load


def test_loads_are_what_comes_over_what_instances_do_at_most() -> None:
    found = utilizations(PROFILE, load(6.0), InstanceCounts(1, 2, 1), 16)
    assert found == pytest.approx(
        {"gateway": 6 * 0.0094, "prefill": 3 * (0.004 + 256 / 1500), "decode": 6 * 63 * 0.03 / 16}
    )
    assert prompt_s(PROFILE, load(6.0).more_cached(1.0))[0] == pytest.approx(0.004 + 1 / 1500)


def test_waits_are_shares_and_means() -> None:
    one, other = requests = load_at(load(1.0), [0.0, 1.0])
    one.line_wait_s, other.line_wait_s, other.slot_wait_s = 0.5, 1e-12, 0.25
    waits = stage_waits(requests)
    assert waits["prefill"].share == 0.5
    assert waits["prefill"].mean_s == pytest.approx(0.25)
    assert waits["decode"] == StageWait(0.5, 0.125)
    assert waits["gateway"] == StageWait(0.0, 0.0)
