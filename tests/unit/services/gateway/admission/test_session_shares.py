"""Who may have the sessions of a gateway: one tenant all of them while it is alone, else each its part."""

from __future__ import annotations

import pytest

from services.gateway.admission.session_shares import (
    FULL_RETRY_MS,
    MAX_WAITING_TENANTS,
    WANTED_S,
    SessionShares,
)
from shared.errors import Overloaded
from tests.support.clock import FakeClock


def take(shares: SessionShares, tenant: str, count: int = 1) -> None:
    shares.check_room(tenant, count, 0.0)
    for _ in range(count):
        shares.begin(tenant)


def refusal(shares: SessionShares, tenant: str, count: int = 1, wait_s: float = 0.0) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        shares.check_room(tenant, count, wait_s)
    return caught.value


def test_a_gateway_without_room_sheds_with_a_hint() -> None:
    shares = SessionShares(8, shared=False)
    take(shares, "", 8)
    assert (refusal(shares, "").retry_after_ms, refusal(shares, "").reason) == (FULL_RETRY_MS, "sessions")
    assert refusal(shares, "", wait_s=2.0).retry_after_ms == 2000


def test_a_call_has_room_for_all_of_its_choices_or_none() -> None:
    shares = SessionShares(8, shared=False)
    take(shares, "", 5)
    assert refusal(shares, "", 4).reason == "sessions"
    take(shares, "", 3)


def test_a_tenant_that_is_alone_has_all_sessions() -> None:
    take(SessionShares(8, shared=True), "a", 8)


def test_the_last_quarter_is_for_those_that_have_less_than_their_part() -> None:
    shares = SessionShares(8, shared=True)
    take(shares, "b")
    take(shares, "a", 5)
    assert refusal(shares, "a").reason == "share"
    take(shares, "b", 2)


def test_who_found_no_room_gets_what_comes_free() -> None:
    shares = SessionShares(8, shared=True, clock=FakeClock())
    take(shares, "hog", 8)
    assert refusal(shares, "b").reason == "sessions"
    shares.end("hog")
    assert refusal(shares, "hog").reason == "share"
    take(shares, "b")


def test_who_wanted_room_long_ago_keeps_nobody_from_it() -> None:
    clock = FakeClock()
    shares = SessionShares(8, shared=True, clock=clock)
    take(shares, "hog", 8)
    refusal(shares, "b")
    shares.end("hog")
    clock.advance(WANTED_S)
    take(shares, "hog")


def test_the_tenants_that_wait_are_bounded() -> None:
    shares = SessionShares(1, shared=True, clock=FakeClock())
    take(shares, "hog")
    for number in range(MAX_WAITING_TENANTS + 5):
        refusal(shares, f"tenant {number}")
    assert len(shares._wanted_until_s) == MAX_WAITING_TENANTS
