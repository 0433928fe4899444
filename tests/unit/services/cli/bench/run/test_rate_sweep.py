"""A sweep ends where goodput grows no more, and says which rate that was."""

from __future__ import annotations

import asyncio

import pytest

from services.cli.bench.run.rate_sweep import SweepPlan, SweepResult, sweep_rates


def swept(plan: SweepPlan, goodputs: dict[float, float]) -> SweepResult[float]:
    async def run(rate: float) -> float:
        return goodputs[rate]

    return asyncio.run(sweep_rates(plan, run, lambda step: step))


def test_rates_grow_by_their_factor_and_the_last_is_one_of_them() -> None:
    assert SweepPlan(1.0, 8.0, 2.0).rates() == [1.0, 2.0, 4.0, 8.0]
    assert SweepPlan(1.0, 7.9, 2.0).rates() == [1.0, 2.0, 4.0]
    assert SweepPlan(3.0, 3.0, 2.0).rates() == [3.0]


def test_two_rates_without_growth_end_it() -> None:
    goodputs = {1.0: 1.0, 2.0: 2.0, 4.0: 3.5, 8.0: 3.55, 16.0: 2.0, 32.0: 99.0}
    result = swept(SweepPlan(1.0, 32.0, 2.0), goodputs)
    assert [rate for rate, _ in result.steps] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert (result.knee, result.reached) == (2, True)


def test_one_rate_without_growth_may_be_chance() -> None:
    result = swept(SweepPlan(1.0, 8.0, 2.0), {1.0: 1.0, 2.0: 0.9, 4.0: 3.0, 8.0: 6.0})
    assert (result.knee, result.reached) == (3, False)


def test_nothing_good_at_all_has_no_knee_and_shows_its_last_step() -> None:
    result = swept(SweepPlan(1.0, 8.0, 2.0), dict.fromkeys((1.0, 2.0, 4.0, 8.0), 0.0))
    assert (len(result.steps), result.knee, result.reached, result.shown) == (3, None, False, 2)


def test_nothing_runs_behind_a_rate_that_is_cut() -> None:
    ran: list[float] = []

    async def run(rate: float) -> float:
        ran.append(rate)
        return rate

    plan = SweepPlan(1.0, 8.0, 2.0)
    result = asyncio.run(sweep_rates(plan, run, lambda step: step, lambda: len(ran) == 2))
    assert [rate for rate, _ in result.steps] == ran == [1.0, 2.0]


@pytest.mark.parametrize("index", [0, 1])
def test_a_step_that_breaks_breaks_the_sweep(index: int) -> None:
    with pytest.raises(KeyError):
        swept(SweepPlan(1.0, 8.0, 2.0), dict.fromkeys((1.0, 2.0)[:index], 1.0))
