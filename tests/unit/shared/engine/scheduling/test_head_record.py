"""What asking a head has brought."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.head_record import HeadRecord


def test_what_is_right_saves_steps_and_what_is_verified_and_computed_costs_some() -> None:
    assert HeadRecord(2.0, 3.0, 4.0).gain(0.1, 0.2) == pytest.approx(2 - 0.3 - 0.8)


def test_a_record_begins_without_hope_and_a_try_that_succeeds_gives_some() -> None:
    record = HeadRecord()
    assert record.gain(0.1, 0.05) < 0
    record.learn(0.6, 1, 1, 1)
    assert record.gain(0.1, 0.05) > 0
    for _ in range(20):
        record.learn(0.1, 0, 1, 1)
    assert record.gain(0.1, 0.05) < 0


def test_what_was_hoped_for_and_never_comes_is_worth_less() -> None:
    fulfilled, vain = HeadRecord(), HeadRecord()
    for _ in range(50):
        fulfilled.learn(2.0, 2, 3, 3)
        vain.learn(2.0, 0, 3, 3)
    assert vain.right < 0.8 * fulfilled.right


def test_a_new_sequence_begins_with_what_others_have_shown_and_learns_its_own() -> None:
    record = HeadRecord()
    for _ in range(100):
        record.learn(2.0, 2, 3, 3)
    own = record.inherited()
    assert own.gain(0.2, 0.1) == record.gain(0.2, 0.1) > 0
    for _ in range(30):
        own.learn(0.1, 0, 1, 1)
    assert own.gain(0.2, 0.1) < 0 < record.gain(0.2, 0.1)
