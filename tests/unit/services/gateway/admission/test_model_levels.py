"""Each model has a level of its own: one under pressure takes nothing from another's requests."""

from __future__ import annotations

import pytest

from services.gateway.admission.degradation import FALL_AFTER_S, RISE_AFTER_S
from services.gateway.admission.model_levels import MAX_REPORTED_MODELS, LevelStep, ModelLevels
from services.gateway.fleet.model_identity import ModelIdentity
from shared.degradation import DegradationLevel
from shared.messages import AdapterId, ModelLevel
from tests.support.clock import FakeClock

BUSY, CALM = ModelIdentity("busy", "b1"), ModelIdentity("calm", "c1")
NONE, FIRST, SECOND = list(DegradationLevel)[:3]


class Levels:
    """Levels whose clock a test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.levels = ModelLevels(self.clock)

    def hold(self, pressures: dict[ModelIdentity, float], seconds: float) -> list[LevelStep]:
        """Let the pressures stand for so long; return what changed at the end of it."""
        assert not self.levels.observe(pressures)
        self.clock.advance(seconds)
        return self.levels.observe(pressures)


@pytest.fixture
def held() -> Levels:
    """Levels of a model under pressure beside one under none."""
    held = Levels()
    assert held.hold({BUSY: 0.7, CALM: 0.0}, RISE_AFTER_S) == [LevelStep(BUSY, NONE, FIRST, 0.7)]
    return held


def test_the_level_of_a_model_under_pressure_is_not_that_of_the_others(held: Levels) -> None:
    assert (held.levels.of(BUSY), held.levels.of(CALM), held.levels.highest) == (FIRST, NONE, FIRST)


def test_an_adapter_has_the_level_of_its_model(held: Levels) -> None:
    adapted = ModelIdentity("busy", "b1", adapter=AdapterId("law", "d"))
    assert held.levels.of(adapted) is FIRST


def test_a_model_of_the_same_name_and_other_weights_is_another(held: Levels) -> None:
    assert held.levels.of(ModelIdentity("busy", "b2")) is NONE


def test_what_is_left_out_of_models_is_reported(held: Levels) -> None:
    assert held.levels.report() == (ModelLevel("busy", "b1", FIRST),)


def test_a_report_names_a_bounded_number_of_models_those_with_the_highest_levels() -> None:
    levels = ModelLevels(FakeClock())
    for number in range(MAX_REPORTED_MODELS + 1):
        levels.ladder(ModelIdentity(f"m{number}")).level = SECOND if number else FIRST
    told = levels.report()
    assert len(told) == MAX_REPORTED_MODELS
    assert {each.level for each in told} == {SECOND}


def test_a_model_that_is_served_no_more_leaves_its_level_and_is_forgotten(held: Levels) -> None:
    assert held.hold({CALM: 0.0}, FALL_AFTER_S) == [LevelStep(BUSY, FIRST, NONE, 0.0)]
    assert (held.levels.highest, held.levels.report()) == (NONE, ())
