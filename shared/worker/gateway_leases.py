"""Let everything expire that is held for a gateway which is heard no more."""

from __future__ import annotations

from collections.abc import Callable

from shared.actor.lease import LEASE_S, LeaseTable
from shared.bus.fleet import FleetView
from shared.deadline import SYSTEM_CLOCK, Clock

IsAlive = Callable[[str], bool]
"""Whether a gateway instance has been heard of lately."""


def gateway_alive(fleet: FleetView) -> IsAlive:
    """Return whether the fleet view has the gateway as alive."""

    def is_alive(gateway: str) -> bool:
        view = fleet.get("gateway", gateway)
        return view is not None and not view.suspect

    return is_alive


class GatewayLeases:
    """One lease per sequence key, renewed as long as its gateway's heartbeats arrive."""

    def __init__(self, is_alive: IsAlive, *, lease_s: float = LEASE_S, clock: Clock = SYSTEM_CLOCK) -> None:
        self._is_alive = is_alive
        self._leases: LeaseTable[str] = LeaseTable(lease_s, clock)
        self._owners: dict[str, set[str]] = {}  # gateway -> keys

    def grant(self, key: str, gateway: str) -> None:
        self._leases.grant(key, gateway)
        self._owners.setdefault(gateway, set()).add(key)

    def drop(self, key: str) -> None:
        self._leases.drop(key)
        for gateway in [gateway for gateway, keys in self._owners.items() if key in keys]:
            self._owners[gateway].discard(key)
            if not self._owners[gateway]:
                del self._owners[gateway]

    def expired(self) -> list[str]:
        """Keys to give back now; call it more often than once per lease."""
        for gateway in self._owners:
            if self._is_alive(gateway):
                self._leases.renew_owner(gateway)
        return self._leases.expired()

    def of(self, gateway: str) -> list[str]:
        return sorted(self._owners.get(gateway, ()))

    def __len__(self) -> int:
        return len(self._leases)
