"""Leases: what is held for someone expires by itself unless its owner is heard from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.deadline import SYSTEM_CLOCK, Clock

K = TypeVar("K")

LEASE_S = 10.0
"""A hold lasts so long without a sign of life of its owner."""


@dataclass(slots=True)
class _Lease:
    owner: str
    until_s: float


class LeaseTable(Generic[K]):
    """Keys, their owners and until when they are held. The table never frees anything itself."""

    def __init__(self, lease_s: float = LEASE_S, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._leases: dict[K, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: K) -> bool:
        return key in self._leases

    def grant(self, key: K, owner: str) -> None:
        """Hold `key` for `owner` from now on; a second grant renews and may change the owner."""
        self._leases[key] = _Lease(owner, self._until_s())

    def renew_owner(self, owner: str) -> None:
        """The owner gave a sign of life: everything held for it goes on."""
        until_s = self._until_s()
        for lease in self._leases.values():
            if lease.owner == owner:
                lease.until_s = until_s

    def drop(self, key: K) -> None:
        """The key was given back; unknown keys are fine."""
        self._leases.pop(key, None)

    def expired(self) -> list[K]:
        """Keys whose lease ran out; they stay in the table until dropped."""
        now_s = self._clock.monotonic_s()
        return [key for key, lease in self._leases.items() if now_s >= lease.until_s]

    def _until_s(self) -> float:
        return self._clock.monotonic_s() + self._lease_s
