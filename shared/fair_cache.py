"""Keep values by owner and key, bounded in number and bytes, so that no owner pushes out another one's share.

An owner that is alone may have all the room. When room is needed, the owner that holds most of what is short
gives up what it used least lately, the newcomer counted with what it brings: of N owners, one that holds at
most the N-th part of the bound in entries and in bytes loses nothing to another.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    value: V
    nbytes: int


class FairCache(Generic[K, V]):
    """`pushed_out` hears of each value that gave way to another one."""

    def __init__(
        self,
        max_entries: int,
        max_bytes: int | None = None,
        pushed_out: Callable[[V], None] = lambda _: None,
    ) -> None:
        """`max_bytes` None: the entries are of one size, and their number bounds them."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._pushed_out = pushed_out
        self._owners: dict[str, OrderedDict[K, _Kept[V]]] = {}  # of each, the one used least lately first
        self._entries: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._num_entries = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_entries

    @property
    def held_bytes(self) -> int:
        return self._num_bytes

    def __iter__(self) -> Iterator[V]:
        """Iterate over the values; none may come or go meanwhile."""
        return (kept.value for owned in self._owners.values() for kept in owned.values())

    def peek(self, owner: str, key: K) -> V | None:
        """Return what the owner has under the key, which does not count as a use."""
        owned = self._owners.get(owner)
        kept = None if owned is None else owned.get(key)
        return None if kept is None else kept.value

    def get(self, owner: str, key: K) -> V | None:
        """Return what the owner has under the key, which counts as a use."""
        owned = self._owners.get(owner)
        if owned is None or key not in owned:
            return None
        owned.move_to_end(key)
        return owned[key].value

    def pop(self, owner: str, key: K) -> V | None:
        """Return what the owner has under the key, and forget it."""
        owned = self._owners.get(owner)
        if owned is None or key not in owned:
            return None
        kept = owned.pop(key)
        self._count(owner, -1, -kept.nbytes)
        return kept.value

    def put(self, owner: str, key: K, value: V, nbytes: int = 0) -> bool:
        """Keep a value in place of what was there; False where it does not fit into the owner's share."""
        self.pop(owner, key)
        if not self._fits_alone(nbytes) or not self._make_room(owner, nbytes):
            return False
        self._owners.setdefault(owner, OrderedDict())[key] = _Kept(value, nbytes)
        self._count(owner, 1, nbytes)
        return True

    def _fits_alone(self, nbytes: int) -> bool:
        return self._max_entries > 0 and (self._max_bytes is None or nbytes <= self._max_bytes)

    def _make_room(self, owner: str, nbytes: int) -> bool:
        """Whether there is room now; False where others would have to give up less than it would have."""
        while self._max_bytes is not None and self._num_bytes + nbytes > self._max_bytes:
            largest = self._largest(self._bytes, owner, nbytes)
            if largest != owner and self._bytes[largest] < self._bytes[owner] + nbytes:
                return False
            self._give_up(largest)
        while self._num_entries >= self._max_entries:
            self._give_up(self._largest(self._entries, owner, 1))
        return True

    def _largest(self, held: Counter[str], newcomer: str, more: int) -> str:
        """Return the owner that holds most, `more` for the newcomer; of equals rather the newcomer."""
        return max(
            self._owners, key=lambda owner: (held[owner] + more * (owner == newcomer), owner == newcomer)
        )

    def _give_up(self, owner: str) -> None:
        _, kept = self._owners[owner].popitem(last=False)
        self._count(owner, -1, -kept.nbytes)
        self._pushed_out(kept.value)

    def _count(self, owner: str, entries: int, nbytes: int) -> None:
        self._entries[owner] += entries
        self._bytes[owner] += nbytes
        self._num_entries += entries
        self._num_bytes += nbytes
        if not self._entries[owner]:
            del self._entries[owner], self._bytes[owner], self._owners[owner]
