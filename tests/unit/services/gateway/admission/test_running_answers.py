"""Answers that run tell when places come free: by how far they are, and how long they may get."""

from __future__ import annotations

import pytest

from services.gateway.admission.length_sketch import LengthEstimate, LengthSketch
from services.gateway.admission.running_answers import (
    MOST_LOOKED_AT,
    PREDICTED_FOR_S,
    RunningAnswer,
    RunningAnswers,
)
from services.gateway.fleet.model_identity import ModelIdentity
from tests.support.clock import FakeClock

MODEL, OTHER = ModelIdentity("m"), ModelIdentity("other")
STEP_S = 0.01


def lengths_of(*tokens: int) -> LengthEstimate:
    sketch = LengthSketch()
    for each in tokens:
        sketch.add(each, cut=False)
    return LengthEstimate.of(sketch)


class Batch:
    """Answers that draw a token each STEP_S."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.running = RunningAnswers(lambda ahead, behind: ahead == behind, self.clock)
        self.answers: list[RunningAnswer] = []

    def begin(self, lengths: LengthEstimate | None, most_tokens: int = 4096) -> RunningAnswer:
        answer = RunningAnswer(MODEL, lengths, most_tokens)
        self.running.begin(answer)
        self.answers.append(answer)
        return answer

    def draw(self, steps: int) -> None:
        for answer in self.answers:
            self.running.draw(answer, 1)
        self.clock.advance((steps - 1) * STEP_S)
        for answer in self.answers:
            self.running.draw(answer, steps - 1)

    def wait_s(self, place: int) -> float:
        wait_s = self.running.wait_s(MODEL, place)
        assert wait_s is not None
        return wait_s


def test_answers_of_one_length_end_when_they_have_it() -> None:
    batch = Batch()
    for _ in range(4):
        batch.begin(lengths_of(*[512] * 20))
    batch.draw(256)
    assert batch.wait_s(4) == pytest.approx(256 * STEP_S, rel=0.1)
    assert batch.wait_s(1) == pytest.approx(256 * STEP_S, rel=0.35)


def test_the_first_of_many_ends_long_before_the_mean() -> None:
    batch = Batch()
    for _ in range(16):
        batch.begin(lengths_of(*range(1, 1025)))
    batch.draw(8)
    assert batch.wait_s(1) < 0.2 * batch.wait_s(8) < 0.2 * batch.wait_s(16)


def test_who_waits_behind_more_than_run_waits_for_those_that_take_their_places_too() -> None:
    batch = Batch()
    for _ in range(2):
        batch.begin(lengths_of(*[512] * 20))
    batch.draw(256)
    assert batch.wait_s(3) > batch.wait_s(2)
    assert batch.wait_s(5) > 2 * batch.wait_s(2)


def test_max_tokens_ends_what_would_go_on() -> None:
    batch = Batch()
    batch.begin(lengths_of(*[4096] * 20), most_tokens=64)
    batch.draw(32)
    assert batch.wait_s(1) <= 64 * STEP_S


def test_an_answer_that_is_longer_than_any_before_goes_on_for_as_long_again() -> None:
    batch = Batch()
    batch.begin(lengths_of(*[16] * 20))
    batch.draw(512)
    assert 0.25 < batch.wait_s(1) / (512 * STEP_S) < 1.0


def test_a_prediction_that_is_used_again_is_as_much_sooner_as_time_has_passed() -> None:
    batch = Batch()
    batch.begin(lengths_of(*[512] * 20))
    batch.draw(64)
    first_s = batch.wait_s(1)
    batch.clock.advance(PREDICTED_FOR_S / 2)
    assert batch.wait_s(1) == pytest.approx(first_s - PREDICTED_FOR_S / 2)


def test_nobody_can_tell_before_tokens_come_nor_where_lengths_are_not_known() -> None:
    batch = Batch()
    assert batch.running.wait_s(MODEL, 1) is None
    batch.begin(lengths_of(*[512] * 20))
    assert batch.running.wait_s(MODEL, 1) is None
    unknown = Batch()
    unknown.begin(None)
    unknown.draw(64)
    assert unknown.running.wait_s(MODEL, 1) is None


def test_answers_of_models_elsewhere_free_no_place() -> None:
    batch = Batch()
    batch.begin(lengths_of(*[512] * 20))
    batch.draw(64)
    assert batch.running.wait_s(OTHER, 1) is None


def test_an_answer_that_has_ended_is_not_counted_and_one_that_had_no_place_is_fine() -> None:
    batch = Batch()
    answer = batch.begin(lengths_of(*[512] * 20))
    batch.running.end(answer)
    batch.running.end(answer)
    assert len(batch.running) == 0


def test_some_stand_for_all_where_many_run() -> None:
    few, many = Batch(), Batch()
    for batch, count in ((few, MOST_LOOKED_AT), (many, 4 * MOST_LOOKED_AT)):
        for _ in range(count):
            batch.begin(lengths_of(*[512] * 20))
        batch.draw(256)
    assert many.wait_s(4 * MOST_LOOKED_AT) == pytest.approx(few.wait_s(MOST_LOOKED_AT), rel=0.1)
