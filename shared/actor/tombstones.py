"""Memory of cancelled requests: a cancel that overtakes its request still wins."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock

TTL_S = 10.0
LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Tombstone:
    epoch: int
    reason: str
    until_s: float


class Tombstones:
    """Tombstones, at most `limit` of them, each for `ttl_s`; the oldest makes room for the newest.

    One that was put up `by` an instance stands in that one's way alone; "" in everybody's.
    """

    def __init__(self, ttl_s: float = TTL_S, limit: int = LIMIT, clock: Clock = SYSTEM_CLOCK) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._clock = clock
        self._stones: OrderedDict[tuple[str, str], Tombstone] = OrderedDict()  # by request and instance

    def __len__(self) -> int:
        self._expire(self._clock.monotonic_s())
        return len(self._stones)

    def add(self, request_id: str, epoch: int, reason: str, *, by: str = "") -> None:
        """Refuse the request at epochs <= `epoch`; a lower epoch than known changes nothing."""
        now_s = self._clock.monotonic_s()
        self._expire(now_s)
        key = (request_id, by)
        known = self._stones.get(key)
        if known is not None and known.epoch > epoch:
            return
        self._stones[key] = Tombstone(epoch, reason, now_s + self._ttl_s)
        self._stones.move_to_end(key)
        if len(self._stones) > self._limit:
            self._stones.popitem(last=False)

    def refuses(self, request_id: str, epoch: int, instance: str = "") -> str:
        """The reason of the cancel that forbids this epoch to `instance`, "" when nothing does."""
        for by in ("", instance) if instance else ("",):
            stone = self._stones.get((request_id, by))
            if stone is not None and epoch <= stone.epoch and self._clock.monotonic_s() < stone.until_s:
                return stone.reason
        return ""

    def knows(self, request_id: str, instance: str) -> bool:
        """Return whether it may refuse some epoch of the request to `instance`; `refuses` takes longer."""
        return (request_id, "") in self._stones or (request_id, instance) in self._stones

    def _expire(self, now_s: float) -> None:
        """Insertion order is expiry order, since every stone lives equally long."""
        while self._stones:
            oldest = next(iter(self._stones.values()))
            if now_s < oldest.until_s:
                return
            self._stones.popitem(last=False)
