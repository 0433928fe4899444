"""Bound the bodies that are being read by their bytes, of all connections together.

Each of them has its own bounds of size and time, but a thousand connections that each send most of a body
would hold gigabytes. Of tenants who are told apart by their keys none gets more than half of the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.config import GatewayConfig
from shared.errors import Overloaded

RETRY_MS = 1000
TENANTS = 2
"""A tenant leaves room for as much of others as it may have itself."""


class BodyRoom:
    """Counts bytes that have come: who only says that many will come takes nothing from others."""

    def __init__(self, config: GatewayConfig) -> None:
        largest = config.max_request_bytes
        self._most = max(config.http_max_body_bytes, largest)
        self._most_of_tenant = max(self._most // TENANTS, largest)
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    @contextmanager
    def place(self, tenant: str) -> Iterator[BodyPlace]:
        """Hold what comes of one body, until it is read."""
        place = BodyPlace(self, tenant)
        try:
            yield place
        finally:
            self._held[tenant] -= place.held_bytes
            if not self._held[tenant]:
                del self._held[tenant]

    def check(self, tenant: str, count: int) -> None:
        """Raises Overloaded where there is no room for so many bytes more. Who has no key is alone here."""
        if self.held_bytes + count > self._most:
            raise _full("bodies", f"{self._most} bytes of bodies are on their way to this gateway")
        if tenant and self._held[tenant] + count > self._most_of_tenant:
            raise _full("tenant_bodies", f"{self._most_of_tenant} bytes of your bodies are on their way here")

    def hold(self, tenant: str, count: int) -> None:
        self.check(tenant, count)
        self._held[tenant] += count


class BodyPlace:
    """The bytes of one body that have come."""

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self.held_bytes = 0

    def take(self, count: int) -> None:
        """Hold so many more. Raises Overloaded where there is no room for them."""
        self._room.hold(self._tenant, count)
        self.held_bytes += count


def _full(reason: str, what: str) -> Overloaded:
    """`reason` is a word for who counts what is shed."""
    return Overloaded(
        f"{what}, which is all that it takes at once: retry later, or send less in one call",
        hop="gateway",
        retry_after_ms=RETRY_MS,
        reason=reason,
    )
