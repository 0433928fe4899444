"""A tenant's jobs are counted over all decode workers, and so are those of the other that has most."""

from __future__ import annotations

from services.gateway.fleet.tenant_jobs import ALONE, TenantJobCounts, TenantStanding
from shared.bus.fleet import InstanceView
from shared.fairness.share import TenantShare
from shared.messages import TenantJobs
from tests.support.heartbeats import make_heartbeat


def decode(instance: str, seen_s: float = 0.0, **jobs: int) -> InstanceView:
    """A worker with so many jobs of each; the heavier tenant has twice the weight of others."""
    weights = {"heavier": 2}
    tenants = tuple(
        TenantJobs(TenantShare(tenant, weights.get(tenant, 1)), count) for tenant, count in jobs.items()
    )
    return InstanceView(make_heartbeat("decode", instance, tenants=tenants), seen_s)


def standing_of(tenant: str, *decodes: InstanceView) -> TenantStanding:
    return TenantJobCounts().standing(tenant, decodes)


def test_jobs_are_counted_over_all_workers() -> None:
    workers = (decode("a", light=1, heavy=5), decode("b", heavy=4, other=3), decode("c", light=2))
    assert standing_of("light", *workers) == TenantStanding(3, 9.0)
    assert standing_of("heavy", *workers) == TenantStanding(9, 3.0)


def test_one_that_has_none_is_told_of_the_others() -> None:
    assert standing_of("new", decode("a", heavy=5)) == TenantStanding(0, 5.0)


def test_others_are_compared_by_their_weight() -> None:
    assert standing_of("light", decode("a", heavier=6, heavy=4)) == TenantStanding(0, 4.0)


def test_where_there_is_nobody_else_it_is_alone() -> None:
    assert standing_of("light") == ALONE
    assert standing_of("light", decode("a", light=3)) == TenantStanding(3, 0.0)


def test_jobs_are_counted_again_when_a_worker_was_heard_or_is_gone() -> None:
    counts = TenantJobCounts()
    first, second = decode("a", heavy=5), decode("b", heavy=1)
    assert counts.standing("light", [first, second]) == TenantStanding(0, 6.0)
    assert counts.standing("light", [decode("a", 1.0, heavy=2, light=1), second]) == TenantStanding(1, 3.0)
    assert counts.standing("light", [second]) == TenantStanding(0, 1.0)
