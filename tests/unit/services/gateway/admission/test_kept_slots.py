"""The last slots are left to tenants that come now and then and have less; nobody else gives up any."""

from __future__ import annotations

import pytest

from services.gateway.admission.kept_slots import LATELY_S, LEAST_SLOTS, KeptSlots
from tests.support.clock import FakeClock


def heavy_beside_light(clock: FakeClock) -> KeptSlots:
    slots = KeptSlots(clock)
    for tenant in ("light", "heavy"):
        slots.note_wanted(tenant)
    for _ in range(3):
        slots.take("heavy")
    return slots


@pytest.mark.parametrize(
    ("capacity", "kept"), [(LEAST_SLOTS - 1, 0), (LEAST_SLOTS, 1), (32, 1), (33, 2), (256, 8)]
)
def test_a_few_are_kept_by_the_size_of_the_fleet(capacity: int, kept: int) -> None:
    slots = heavy_beside_light(FakeClock())
    assert slots.kept_from("heavy", capacity, ()) == kept
    assert slots.kept_from("light", capacity, ()) == 0


@pytest.mark.parametrize(("ago_s", "kept"), [(LATELY_S, 1), (LATELY_S + 0.1, 0)])
def test_nothing_is_kept_for_who_has_not_come_for_long(ago_s: float, kept: int) -> None:
    clock = FakeClock()
    slots = heavy_beside_light(clock)
    clock.advance(ago_s)
    slots.note_wanted("heavy")
    assert slots.kept_from("heavy", 32, ()) == kept


def test_who_is_alone_has_all_of_them() -> None:
    slots = KeptSlots(FakeClock())
    slots.note_wanted("heavy")
    slots.take("heavy")
    assert slots.kept_from("heavy", 32, ()) == 0


def test_nothing_is_kept_for_who_waits_or_has_as_much() -> None:
    slots = heavy_beside_light(FakeClock())
    assert slots.kept_from("heavy", 32, {"light", "heavy"}) == 0
    for _ in range(3):
        slots.take("light")
    assert slots.kept_from("heavy", 32, ()) == 0
    slots.give_back("light")
    assert slots.kept_from("heavy", 32, ()) == 1
