"""The generator's own load is told from its clocks."""

from __future__ import annotations

import pytest

from services.cli.bench.run.loop_watch import BUSY_SHARE, TICK_S, LoopWatch


def watch_of(wall_s: float, cpu_s: float) -> LoopWatch:
    walls, cpus = iter((100.0, 100.0 + wall_s)), iter((7.0, 7.0 + cpu_s))
    return LoopWatch(lambda: next(walls), lambda: next(cpus))


@pytest.mark.parametrize(("cpu_s", "warns"), [(BUSY_SHARE * 10, False), (BUSY_SHARE * 10 + 0.1, True)])
def test_a_generator_that_keeps_its_core_busy_says_so(cpu_s: float, warns: bool) -> None:
    load = watch_of(10.0, cpu_s).load([])
    assert load.cpu_share == pytest.approx(cpu_s / 10)
    assert bool(load.warnings()) == warns


def test_a_run_that_ends_at_once_says_nothing_of_its_core() -> None:
    assert watch_of(TICK_S * 0.9, TICK_S).load([]).warnings() == []
    assert watch_of(TICK_S * 1.1, TICK_S * 1.1).load([]).warnings() != []
