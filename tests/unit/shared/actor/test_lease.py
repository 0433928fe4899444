"""Leases expire by themselves, and a sign of life of the owner renews all of them."""

from __future__ import annotations

from shared.actor.lease import LeaseTable
from tests.support.clock import FakeClock


def table(clock: FakeClock) -> LeaseTable[str]:
    return LeaseTable(10.0, clock)


def test_a_lease_expires_after_its_time_and_not_before() -> None:
    clock = FakeClock()
    leases = table(clock)
    leases.grant("r1", "gateway-0")
    clock.advance(9.999)
    assert leases.expired() == []
    clock.advance(0.001)
    assert leases.expired() == ["r1"]


def test_an_expired_lease_stays_until_it_is_dropped() -> None:
    clock = FakeClock()
    leases = table(clock)
    leases.grant("r1", "gateway-0")
    clock.advance(11)
    assert leases.expired() == leases.expired() == ["r1"]
    leases.drop("r1")
    assert leases.expired() == []
    assert len(leases) == 0


def test_the_owner_s_heartbeat_renews_its_leases_and_no_others() -> None:
    clock = FakeClock()
    leases = table(clock)
    leases.grant("r1", "gateway-0")
    leases.grant("r2", "gateway-1")
    clock.advance(8)
    leases.renew_owner("gateway-0")
    clock.advance(8)
    assert leases.expired() == ["r2"]


def test_dropping_an_unknown_lease_is_fine() -> None:
    leases = table(FakeClock())
    leases.drop("never granted")
    assert "never granted" not in leases
