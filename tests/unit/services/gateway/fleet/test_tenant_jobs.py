"""A tenant's jobs are counted over all decode workers, and so are those of the other that has most."""

from __future__ import annotations

from services.gateway.fleet.tenant_jobs import ALONE, TenantStanding, standing_of
from shared.fairness.share import TenantShare
from shared.messages import Heartbeat, TenantJobs
from tests.support.heartbeats import make_heartbeat


def decode(**jobs: int) -> Heartbeat:
    """A worker with so many jobs of each; the heavier tenant has twice the weight of others."""
    weights = {"heavier": 2}
    tenants = tuple(
        TenantJobs(TenantShare(tenant, weights.get(tenant, 1)), count) for tenant, count in jobs.items()
    )
    return make_heartbeat("decode", "decode-0", tenants=tenants)


def test_jobs_are_counted_over_all_workers() -> None:
    workers = [decode(light=1, heavy=5), decode(heavy=4, other=3), decode(light=2)]
    assert standing_of("light", workers) == TenantStanding(3, 9.0)
    assert standing_of("heavy", workers) == TenantStanding(9, 3.0)


def test_one_that_has_none_is_told_of_the_others() -> None:
    assert standing_of("new", [decode(heavy=5)]) == TenantStanding(0, 5.0)


def test_others_are_compared_by_their_weight() -> None:
    assert standing_of("light", [decode(heavier=6, heavy=4)]) == TenantStanding(0, 4.0)


def test_where_there_is_nobody_else_it_is_alone() -> None:
    assert standing_of("light", []) == ALONE
    assert standing_of("light", [decode(light=3)]) == TenantStanding(3, 0.0)
