"""Tenants with fewer slots than another may be guests; who is alone or has as many may not."""

from __future__ import annotations

import pytest

from services.gateway.admission.taken_slots import TakenSlots
from services.gateway.fleet.tenant_jobs import ALONE, TenantStanding
from shared.fairness.share import TenantShare
from shared.messages import Held

LIGHT = TenantShare("light")


def taken(count: int) -> TakenSlots:
    slots = TakenSlots()
    for _ in range(count):
        slots.take(LIGHT.tenant)
    return slots


@pytest.mark.parametrize("had", [0, 16])
def test_who_is_alone_is_no_guest(had: int) -> None:
    assert not taken(had).may_be_guest(LIGHT, ALONE)


@pytest.mark.parametrize(("had", "may"), [(0, True), (7, True), (8, False)])
def test_one_with_fewer_than_another_may_be_until_it_has_as_many(had: int, may: bool) -> None:
    assert taken(had).may_be_guest(LIGHT, TenantStanding(0, 8.0)) is may


def test_what_it_has_by_other_gateways_counts_as_well() -> None:
    assert not taken(2).may_be_guest(LIGHT, TenantStanding(8, 8.0))
    assert taken(2).may_be_guest(LIGHT, TenantStanding(7, 8.0))


def test_one_that_has_its_slot_may_have_no_more_than_another() -> None:
    assert taken(8).may_be_guest(LIGHT, TenantStanding(0, 8.0), more=0)
    assert not taken(9).may_be_guest(LIGHT, TenantStanding(0, 8.0), more=0)


@pytest.mark.parametrize(("had", "may"), [(5, True), (6, False)])
def test_what_others_have_is_compared_by_weight(had: int, may: bool) -> None:
    assert taken(had).may_be_guest(TenantShare("light", weight=3), TenantStanding(0, 2.0)) is may


def test_what_is_given_back_counts_no_more() -> None:
    slots = taken(1)
    assert not slots.may_be_guest(LIGHT, TenantStanding(0, 1.0))
    slots.give_back(LIGHT.tenant)
    assert slots.may_be_guest(LIGHT, TenantStanding(0, 1.0))


def test_what_is_taken_is_told_until_it_is_given_back() -> None:
    slots = taken(2)
    assert list(slots.held()) == [Held("", "slot", 2, LIGHT.tenant)]
    slots.give_back(LIGHT.tenant)
    slots.give_back(LIGHT.tenant)
    assert list(slots.held()) == []
