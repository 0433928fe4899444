"""Say whom a change would reach: by the requests that the gateways have just had. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.flags.flag_match import is_for
from shared.flags.guard import FAILED_OUTCOMES
from shared.messages import FlagChange, FlagTraffic, FlagTrafficRow
from shared.telemetry.percentile import percentile

LOOK_BACK_S = 300
"""The last minutes that are looked at."""
NOBODY = "(open edge)"
"""The tenant of requests that have no key."""


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """A tenant's requests of the kind that the change is for; times are 0 where none was answered."""

    tenant: str
    per_minute: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    failed: int


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """`per_minute` of all requests; `overrides`: what is in force for the same setting and some of the same
    requests, and would count no more for them, or goes on counting because it is more specific."""

    loads: tuple[TenantLoad, ...]
    per_minute: float
    gateways: int
    overrides: tuple[str, ...]

    @property
    def reached_per_minute(self) -> float:
        return sum(load.per_minute for load in self.loads)


def blast_radius(
    change: FlagChange, traffic: Sequence[FlagTraffic], in_force: Iterable[FlagChange], now_unix_us: int
) -> BlastRadius:
    """Return whom `change` is for, be they in its share or not."""
    rows: defaultdict[str, list[tuple[float, FlagTrafficRow]]] = defaultdict(list)
    all_per_minute = 0.0
    for told in traffic:
        minutes = max(1.0, (now_unix_us - told.since_unix_us) / 1e6) / 60
        all_per_minute += len(told.rows) / minutes
        for row in told.rows:
            if is_for(change, row.tenant, row.model):
                rows[row.tenant].append((1 / minutes, row))
    loads = [_load(tenant, of) for tenant, of in rows.items()]
    return BlastRadius(
        tuple(sorted(loads, key=lambda load: (-load.per_minute, load.tenant))),
        all_per_minute,
        len(traffic),
        tuple(each.version for each in in_force if _meets(each, change)),
    )


def _load(tenant: str, rows: Sequence[tuple[float, FlagTrafficRow]]) -> TenantLoad:
    ttfts = sorted(row.ttft_us / 1000 for _, row in rows if row.ttft_us)
    return TenantLoad(
        tenant or NOBODY,
        sum(per_minute for per_minute, _ in rows),
        percentile(ttfts, 0.5, 0.0),
        percentile(ttfts, 0.99, 0.0),
        sum(row.outcome in FAILED_OUTCOMES for _, row in rows),
    )


def _meets(one: FlagChange, other: FlagChange) -> bool:
    """Whether both set the same for some of the same requests."""
    tenants, models = {one.tenant, other.tenant} - {""}, {one.model, other.model} - {""}
    return one.setting == other.setting and len(tenants) < 2 and len(models) < 2
