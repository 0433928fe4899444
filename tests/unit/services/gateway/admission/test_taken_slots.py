"""Tenants with less than their part of the slots may be guests; who is alone or has its part may not."""

from __future__ import annotations

import pytest

from services.gateway.admission.taken_slots import TakenSlots
from shared.fairness.share import TenantShare

HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def taken(**counts: int) -> TakenSlots:
    slots = TakenSlots()
    for tenant, count in counts.items():
        for _ in range(count):
            slots.take(TenantShare(tenant))
    return slots


def test_who_is_alone_is_no_guest() -> None:
    assert not taken().may_be_guest(HEAVY, 16)
    assert not taken(heavy=16).may_be_guest(HEAVY, 16)


@pytest.mark.parametrize(("had", "may"), [(0, True), (7, True), (8, False)])
def test_of_two_tenants_one_may_be_until_it_has_half(had: int, may: bool) -> None:
    slots = taken(heavy=16, light=had)
    assert slots.may_be_guest(LIGHT, 16) is may
    assert not slots.may_be_guest(HEAVY, 16)


def test_a_part_is_by_weight() -> None:
    slots = taken(heavy=15)
    heavier = TenantShare("light", weight=3)
    for _ in range(11):
        slots.take(heavier)
    assert slots.may_be_guest(heavier, 16)
    slots.take(heavier)
    assert not slots.may_be_guest(heavier, 16)


def test_however_many_tenants_there_are_each_may_have_one() -> None:
    slots = taken(**{f"tenant-{number}": 1 for number in range(20)})
    assert slots.may_be_guest(LIGHT, 8)
    slots.take(LIGHT)
    assert not slots.may_be_guest(LIGHT, 8)


def test_what_is_given_back_counts_no_more() -> None:
    slots = taken(heavy=1, light=8)
    assert not slots.may_be_guest(LIGHT, 16)
    slots.give_back(LIGHT)
    assert slots.may_be_guest(LIGHT, 16)
    slots.give_back(HEAVY)
    assert not slots.may_be_guest(LIGHT, 16)
