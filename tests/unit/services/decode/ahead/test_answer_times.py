"""How long an answer may take."""

from __future__ import annotations

from services.decode.ahead.answer_times import AnswerTimes


def test_a_step_is_left_less_some_doubt_and_the_way() -> None:
    times = AnswerTimes()
    assert times.within_us("s", 1000) == 900
    times.observe("s", 0.005, 4_800)
    assert times.within_us("s", 1000) == 700
    assert times.within_us("t", 1000) == 900


def test_the_way_is_a_mean_and_never_shorter_than_none() -> None:
    times = AnswerTimes()
    times.observe("s", 0.001, 0)
    times.observe("s", 0.001, 5_000)
    assert times.within_us("s", 1000) == 100
    times.forget("s")
    assert times.within_us("s", 1000) == 900
