"""Remember what each tenant has had lately: it fades with what all of them are served, not with time."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

FADES_IN = float(1 << 16)
"""Computed tokens that all together have after which a third (1/e) of a tenant's share still counts."""


class _Had(NamedTuple):
    service: float
    total: float
    """The service of all tenants together until then."""


class RecentService:
    """The service of at most `most` tenants; beyond, the one is forgotten that was served longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0.0
        self._had: OrderedDict[str, _Had] = OrderedDict()  # who was served longest ago comes first

    def __len__(self) -> int:
        return len(self._had)

    def of(self, tenant: str) -> float:
        had = self._had.get(tenant)
        return 0.0 if had is None else had.service * math.exp((had.total - self._total) / FADES_IN)

    def add(self, tenant: str, cost: float) -> None:
        """The tenant had a turn of so much, by its weight."""
        self._total += cost
        self._had[tenant] = _Had(self.of(tenant) + cost, self._total)
        self._had.move_to_end(tenant)
        if len(self._had) > self._most:
            self._had.popitem(last=False)
