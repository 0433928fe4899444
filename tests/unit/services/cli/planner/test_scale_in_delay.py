"""Instances stay until none of them was needed for a time."""

from __future__ import annotations

from services.cli.planner.scale_in_delay import ScaleInDelay


def test_to_scale_out_waits_for_nothing() -> None:
    assert ScaleInDelay(300.0).kept(0.0, 7, 2) == 7


def test_fewer_are_kept_when_no_more_were_needed_for_the_whole_time() -> None:
    delay = ScaleInDelay(300.0)
    assert [delay.kept(at_s, needed, 5) for at_s, needed in ((0, 5), (100, 3), (200, 4), (300, 2))] == [5] * 4
    assert delay.kept(301.0, 2, 5) == 4, "what was needed at 200 s counts still"
    assert delay.kept(501.0, 2, 4) == 2


def test_a_need_that_was_never_met_keeps_nobody_that_is_not_there() -> None:
    delay = ScaleInDelay(300.0)
    delay.kept(0.0, 9, 2)
    assert delay.kept(10.0, 1, 2) == 2


def test_memory_is_bounded_by_counts() -> None:
    delay = ScaleInDelay(1e9)
    for at_s in range(10_000):
        delay.kept(float(at_s), at_s % 7, 7)
    assert len(delay._needed) <= 7
