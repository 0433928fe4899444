"""What light tenants see of a heavy one where nobody waits for a core."""

from __future__ import annotations

import pytest

from tests.simulation.fair_scenario import Fairness, Outcome, Scenario

SEED = 3
BRIEF = Scenario(seconds=0.3, output_tokens=20, heavy_times=10, capacity_per_s=80.0, patience_s=0.2)
TIMES = 3.0
"""Times the slowest first token of light tenants alone. It is wide: a few calls, and all begin at once. The
goal for the p99 of many is 1.3, which `bench_fairness` looks at."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    """Light tenants alone, and beside one with many times what the fleet can do."""
    fairness = Fairness(tmp_path_factory.mktemp("fair"), BRIEF, [SEED])
    return fairness.alone(), fairness.fair()


def test_a_heavy_tenant_leaves_nobody_else_unserved(outcomes: tuple[Outcome, Outcome]) -> None:
    alone, fair = outcomes
    assert fair.unserved == 0
    assert fair.tokens_per_s > alone.tokens_per_s


def test_first_tokens_of_light_tenants_come_about_as_soon_beside_a_heavy_one(
    outcomes: tuple[Outcome, Outcome],
) -> None:
    alone, fair = outcomes
    assert fair.ttft_ms(1.0) <= TIMES * alone.ttft_ms(1.0)


def test_no_light_tenant_waits_for_a_slot(outcomes: tuple[Outcome, Outcome]) -> None:
    _, fair = outcomes
    assert fair.phase_ms("line", 1.0) < 1.0
