"""Adapters as messages name them: low-rank changes of a model, several over one."""

from __future__ import annotations

from dataclasses import dataclass

MAX_REPORTED_CHARS = 200
"""The longest sentence in a report; what is longer is cut."""


@dataclass(frozen=True, slots=True, order=True)
class AdapterId:
    """`name` is what clients ask for, `digest` what it is: KV passes only within one."""

    name: str
    digest: str


NO_ADAPTER = AdapterId("", "")
"""The model alone."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """The fate of an entry of the adapter file at a worker, in the last `version` that it acted on.

    `digest` is that of what requests for `name` are computed with here, "" where there is nothing; `error`
    why the entry could not be loaded, "" where it was. Where an earlier version goes on instead, both are. No
    `tenants`: it is for everybody.
    """

    name: str
    version: int
    digest: str
    rank: int
    error: str = ""
    tenants: tuple[str, ...] = ()

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants
