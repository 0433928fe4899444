"""What happened on a bus, as one digest: two runs of a seed have the same."""

from __future__ import annotations

import asyncio
import hashlib

KEPT_EVENTS = 20_000
"""The first events, kept as text so that two traces can be compared line by line; the digest is of all."""


class Trace:
    """Events with their time in the loop, in the order in which they happened. `is_kept`: else nothing is
    noted, where a world has a trace of all its calls."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        self._hash = hashlib.blake2b(digest_size=16)
        self.events: list[str] = []
        self.count = 0

    def note(self, event: str, *what: object) -> None:
        if not self.is_kept:
            return
        line = f"{asyncio.get_running_loop().time():.9f} {event} {' '.join(map(str, what))}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.count += 1
        if self.count <= KEPT_EVENTS:
            self.events.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()
