"""Ends of steps, of runs and one by one."""

from __future__ import annotations

import pytest

from services.cli.capacity.pipeline.step_log import StepLog


def test_a_run_is_as_good_as_its_steps() -> None:
    runs, single = StepLog(), StepLog()
    runs.add(1.0, 0.5, 3)
    runs.add(4.0, 0.25, 2)
    for began_s, step_s in ((1.0, 0.5), (1.5, 0.5), (2.0, 0.5), (4.0, 0.25), (4.25, 0.25)):
        single.add(began_s, step_s, 1)
    assert runs.count == single.count == 5
    assert runs.ends_s().tolist() == pytest.approx(single.ends_s().tolist())
    assert runs.ends_s().tolist() == pytest.approx([1.5, 2.0, 2.5, 4.25, 4.5])


def test_nobody_who_never_stepped_has_ends() -> None:
    assert StepLog().ends_s().tolist() == []
