"""What happened in a simulated world, call by call: as one hash, and the last of it in words."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import NamedTuple

KEPT_CALLS = 2_000
"""The last calls that a failure can be explained by."""
HASHED_CALLS = 500
"""So many calls go into the hash at a time, which costs a third of one by one."""


class Called(NamedTuple):
    at_ns: int
    node: str
    what: str


class Trace:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._last: deque[tuple[int, str, str]] = deque(maxlen=KEPT_CALLS)
        self._unhashed: list[tuple[int, str, str]] = []
        self.calls = 0

    def called(self, at_ns: int, node: str, what: str) -> None:
        """Note a call, or whatever else two runs of one seed have to agree in."""
        self.calls += 1
        self._unhashed.append((at_ns, node, what))
        if len(self._unhashed) >= HASHED_CALLS:
            self._hash_them()

    @property
    def last(self) -> list[Called]:
        """The last calls, the latest one last."""
        self._hash_them()
        return [Called(*one) for one in self._last]

    def hexdigest(self) -> str:
        """The same exactly where all calls were, in the same order and at the same times."""
        self._hash_them()
        return self._hash.hexdigest()

    def _hash_them(self) -> None:
        self._last += self._unhashed
        self._hash.update(
            "".join(f"{at_ns} {node} {what}\n" for at_ns, node, what in self._unhashed).encode()
        )
        self._unhashed.clear()
