"""For how many outcomes drafts are asked."""

from __future__ import annotations

from services.decode.ahead.draft_fan import PROBE_AFTER_ROUNDS, STEP_BRANCHES, DraftFan
from shared.worker.drafts.draft_tree import MAX_BRANCHES


def test_as_many_as_are_configured_where_there_is_room() -> None:
    assert DraftFan(3).next(4, 1) == 3
    assert DraftFan(0).next(4, 1) == 0


def test_nothing_is_prepared_where_nothing_is_drafted() -> None:
    assert DraftFan(3).next(0, 1) == 0


def test_no_more_than_may_be_sent_or_than_a_step_has_room_for() -> None:
    places = MAX_BRANCHES // 2
    assert DraftFan(3).next(places - 1, 1) == 2
    assert DraftFan(3).next(places, 1) == 1
    assert DraftFan(3).next(3, STEP_BRANCHES // 8) == 2
    assert DraftFan(3).next(3, STEP_BRANCHES) == 0


def test_a_speculator_that_is_late_is_asked_again_now_and_then() -> None:
    fan = DraftFan(3)
    for _ in range(10):
        fan.observe(in_time=False)
    asked = [fan.next(4, 1) for _ in range(2 * PROBE_AFTER_ROUNDS)]
    assert asked == ([0] * (PROBE_AFTER_ROUNDS - 1) + [1]) * 2
    for _ in range(4):
        fan.observe(in_time=True)
    assert fan.next(4, 1) == 3
