"""Share the sessions of a gateway among its tenants: one that is alone has all of them."""

from __future__ import annotations

import math
from collections import Counter

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Overloaded

FULL_RETRY_MS = 500
"""The hint to a client when all sessions are in use and none has ended yet to tell from."""
RESERVED_SHARE = 0.25
"""The share of the sessions that is kept for tenants that have less than an equal part of all."""
WANTED_S = 5.0
"""A tenant that found no room counts as one of those who share for so long after it has asked."""
MAX_WAITING_TENANTS = 1024
SESSIONS, SHARE = "sessions", "share"
"""Why the gateway sheds here, as `penstock_shed_total` counts it."""


class SessionShares:
    """The live sessions by tenant. `shared`: there are several tenants, rather than an open edge."""

    def __init__(self, most: int, *, shared: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._most = most
        self._reserved = int(RESERVED_SHARE * most) if shared else 0
        self._clock = clock
        self._live: Counter[str] = Counter()
        self._wanted_until_s: dict[str, float] = {}

    def check_room(self, tenant: str, count: int, wait_s: float) -> None:
        """Raise Overloaded when `count` more have no room; `wait_s` is when there may be some, 0 unknown."""
        free = self._most - self._live.total()
        if count > free:
            self._note_wanted(tenant)
            raise Overloaded(
                f"all {self._most} sessions of this gateway are in use: retry later or use another gateway",
                hop="gateway",
                retry_after_ms=_hint_ms(wait_s),
                reason=SESSIONS,
            )
        if count > free - self._reserved and self._live[tenant] + count > self._equal_part(tenant):
            raise Overloaded(
                f"{self._live[tenant]} of {self._most} sessions of this gateway are this tenant's and others "
                "ask too: retry later or use another gateway",
                hop="gateway",
                retry_after_ms=_hint_ms(wait_s),
                reason=SHARE,
            )

    def begin(self, tenant: str) -> None:
        self._live[tenant] += 1
        self._wanted_until_s.pop(tenant, None)

    def end(self, tenant: str) -> None:
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]

    def _equal_part(self, tenant: str) -> int:
        """Return the sessions of each tenant if all had as many: those that have some, or lately wanted."""
        now_s = self._clock.monotonic_s()
        wanting = {each for each, until_s in self._wanted_until_s.items() if until_s > now_s}
        return self._most // len({tenant, *self._live, *wanting})

    def _note_wanted(self, tenant: str) -> None:
        if len(self._wanted_until_s) >= MAX_WAITING_TENANTS:
            del self._wanted_until_s[next(iter(self._wanted_until_s))]  # the one that was the first to want
        self._wanted_until_s.pop(tenant, None)
        self._wanted_until_s[tenant] = self._clock.monotonic_s() + WANTED_S


def _hint_ms(wait_s: float) -> int:
    return math.ceil(wait_s * 1000) or FULL_RETRY_MS
