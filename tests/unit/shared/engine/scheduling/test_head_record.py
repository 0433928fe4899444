"""What asking a head has brought."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.head_record import HeadRecord


def test_what_is_right_saves_steps_and_what_is_verified_and_computed_costs_some() -> None:
    assert HeadRecord(2.0, 3.0, 4.0).gain(0.1, 0.2) == pytest.approx(2 - 0.3 - 0.8)


def test_a_record_begins_with_hope_and_loses_it() -> None:
    record = HeadRecord()
    first = record.copy()
    assert record.gain(0.2, 0.1) > 0
    for _ in range(40):
        record.learn(0.1, 0, 1, 1)
    assert record.gain(0.2, 0.1) < 0
    assert first.gain(0.2, 0.1) > 0
