"""Count the places that a tenant has at decode, beside those of others, over all gateways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shared.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class TenantStanding:
    """The jobs of a tenant, and those of the other tenant that has most, by its weight."""

    jobs: int
    most_of_others: float


ALONE = TenantStanding(0, 0.0)
"""The standing of a tenant beside which there is none."""


def standing_of(tenant: str, decodes: Iterable[Heartbeat]) -> TenantStanding:
    """Return where a tenant, by its digest, stands at these decode workers together."""
    jobs: Counter[str] = Counter()
    weights: dict[str, int] = {}
    for beat in decodes:
        for each in beat.decode.tenants:
            jobs[each.share.tenant] += each.jobs
            weights[each.share.tenant] = each.share.weight
    own = jobs.pop(tenant, 0)
    return TenantStanding(own, max((count / weights[other] for other, count in jobs.items()), default=0.0))
