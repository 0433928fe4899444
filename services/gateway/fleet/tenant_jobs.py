"""Count the places that a tenant has at decode, beside those of others, over all gateways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shared.bus.fleet import InstanceView


@dataclass(frozen=True, slots=True)
class TenantStanding:
    """The jobs of a tenant, and those of the other tenant that has most, by its weight."""

    jobs: int
    most_of_others: float


ALONE = TenantStanding(0, 0.0)
"""The standing of a tenant beside which there is none."""


class TenantJobCounts:
    """The jobs by tenant that decode workers tell of; they are counted again when one of these was heard."""

    def __init__(self) -> None:
        self._heard: tuple[tuple[str, float], ...] = ()
        self._jobs: Counter[str] = Counter()
        self._most: list[tuple[float, str]] = []  # the two tenants with most by weight

    def standing(self, tenant: str, decodes: Sequence[InstanceView]) -> TenantStanding:
        """Return where a tenant, by its digest, stands at these workers together."""
        heard = tuple((view.heartbeat.instance, view.last_seen_s) for view in decodes)
        if heard != self._heard:
            self._heard = heard
            self._count(decodes)
        others = (most for most, other in self._most if other != tenant)
        return TenantStanding(self._jobs[tenant], next(others, 0.0))

    def _count(self, decodes: Sequence[InstanceView]) -> None:
        weights: dict[str, int] = {}
        self._jobs.clear()
        for view in decodes:
            for each in view.heartbeat.decode.tenants:
                self._jobs[each.share.tenant] += each.jobs
                weights[each.share.tenant] = each.share.weight
        parts = ((count / weights[tenant], tenant) for tenant, count in self._jobs.items())
        self._most = sorted(parts, reverse=True)[:2]
