"""A small memory of things that matter for a while: bounded, and forgetful on purpose."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Expiring(Generic[K, V]):
    """A map of at most `limit` entries, each for `lifetime_s`; when full the oldest goes."""

    def __init__(self, limit: int, lifetime_s: float) -> None:
        self._limit = limit
        self._lifetime_s = lifetime_s
        self._entries: dict[K, tuple[float, V]] = {}

    def put(self, key: K, value: V, now_s: float) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (now_s + self._lifetime_s, value)
        if len(self._entries) > self._limit:
            self._entries.pop(next(iter(self._entries)))

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return entry[1] if entry else None

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return entry[1] if entry else None

    def forget(self, now_s: float) -> None:
        """Drop what has expired. Entries are in order of age, so this looks at little."""
        while self._entries:
            key = next(iter(self._entries))
            if self._entries[key][0] > now_s:
                return
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)
