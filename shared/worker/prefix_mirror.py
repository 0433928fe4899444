"""The event loop's copy of the engine's prefix cache: which block hashes are there, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.engine.memory.block_pool import BlockEvent
from shared.messages import Snapshot, pack_hashes

MAX_EVENTS_PER_BEAT = 8192
"""64 KB of hashes in one heartbeat; what is left goes with the next."""


@dataclass(frozen=True, slots=True)
class PrefixDelta:
    """What a heartbeat carries; fields as in `Heartbeat`."""

    event_id: int
    added: bytes
    removed: bytes


class PrefixMirror:
    """Fed with the engine's events after each call into it; read by heartbeats, snapshots and admission."""

    def __init__(self) -> None:
        self._present: set[bytes] = set()
        self._untold: dict[bytes, bool] = {}  # hash -> whether it came (or went), in order
        self._event_id = 0

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            self._note(event.block_hash, came=event.kind == "added")

    def clear(self) -> None:
        """The engine was replaced: everything it had is gone."""
        for block_hash in list(self._present):
            self._note(block_hash, came=False)

    def overlap_blocks(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of `hashes` are cached."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self._present:
                return index
        return len(hashes)

    def drain(self) -> PrefixDelta:
        """The oldest untold changes. `event_id` counts every change told so far, these included."""
        told = list(self._untold.items())[:MAX_EVENTS_PER_BEAT]
        for block_hash, _ in told:
            del self._untold[block_hash]
        self._event_id += len(told)
        added = pack_hashes(block_hash for block_hash, came in told if came)
        removed = pack_hashes(block_hash for block_hash, came in told if not came)
        return PrefixDelta(self._event_id, added, removed)

    def snapshot(self) -> Snapshot:
        """What a listener that heard every event up to `prefix_event_id` knows."""
        known = set(self._present)
        for block_hash, came in self._untold.items():
            if came:
                known.discard(block_hash)
            else:
                known.add(block_hash)
        return Snapshot(self._event_id, pack_hashes(sorted(known)))

    def _note(self, block_hash: bytes, *, came: bool) -> None:
        if came:
            self._present.add(block_hash)
        else:
            self._present.discard(block_hash)
        if self._untold.get(block_hash, came) != came:
            del self._untold[block_hash]  # came and went (or the reverse) before anybody was told
        else:
            self._untold[block_hash] = came
