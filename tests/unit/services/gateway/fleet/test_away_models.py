"""Requests that wait for models without workers: how many, and for which."""

from __future__ import annotations

import pytest

from services.gateway.fleet.away_models import MAX_TOLD_MODELS, AwayModels
from shared.errors import Overloaded


def test_models_are_wanted_as_long_as_somebody_waits_for_them() -> None:
    away = AwayModels(100)
    with away.waiting("two"), away.waiting("one"):
        with away.waiting("two"):
            assert [*away.wanted] == ["one", "two"]
        assert [*away.wanted] == ["one", "two"]
    assert [*away.wanted] == []


def test_some_are_told_at_most_and_who_is_shed_wants_nothing() -> None:
    away = AwayModels(4)
    with away.waiting("one"):
        with pytest.raises(Overloaded), away.waiting("two"):
            raise AssertionError("there is room for one")
        with away.waiting("three", others_are_served=False):
            assert [*away.wanted] == ["one", "three"]
        assert [*away.wanted] == ["one"]
    many = AwayModels(1000)
    held = [many.waiting(f"{number:02}") for number in range(MAX_TOLD_MODELS + 1)]
    for each in held:
        each.__enter__()
    assert len(many.wanted) == MAX_TOLD_MODELS
    for each in held:
        each.__exit__(None, None, None)
    assert [*many.wanted] == []
