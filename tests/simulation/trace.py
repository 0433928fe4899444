"""What happened in a simulated world, call by call: as one hash, and the last of it in words."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import NamedTuple

KEPT_CALLS = 2_000
"""The last calls that a failure can be explained by."""


class Called(NamedTuple):
    at_ns: int
    node: str
    what: str


class Trace:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.calls = 0
        self.last: deque[Called] = deque(maxlen=KEPT_CALLS)

    def called(self, at_ns: int, node: str, what: str) -> None:
        """Note a call, or whatever else two runs of one seed have to agree in."""
        self.calls += 1
        self.last.append(Called(at_ns, node, what))
        self._hash.update(f"{at_ns} {node} {what}\n".encode())

    def hexdigest(self) -> str:
        """The same exactly where all calls were, in the same order and at the same times."""
        return self._hash.hexdigest()
