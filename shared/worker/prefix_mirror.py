"""The event loop's copy of the engine's prefix cache: which block hashes are there, and what changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.blocks.layer_groups import ONE_GROUP
from shared.engine.memory.block_pool import BlockEvent
from shared.errors import InvalidRequest
from shared.messages import Snapshot, pack_hashes

MAX_EVENTS_PER_BEAT = 4096
"""64 KB of hashes in one heartbeat; what is left goes with the next."""
MAX_PAGE_HASHES = 1 << 14
"""256 KB of hashes in one page of a snapshot, as long as a bucket has no more."""
BUCKETS = 256
"""The buckets by the first byte of a hash, which is as good as random: a bucket is this part of the prefix
cache."""


@dataclass(frozen=True, slots=True)
class PrefixDelta:
    """The change of the prefix cache that a heartbeat carries; fields as in `Heartbeat`."""

    event_id: int
    added: bytes
    removed: bytes


class PrefixMirror:
    """Fed with the engine's events after each call into it; read by heartbeats, snapshots and admission.

    No call but `clear` takes longer because the pool is larger.
    """

    def __init__(self) -> None:
        self._told: list[set[bytes]] = [set() for _ in range(BUCKETS)]
        """The hashes that listeners know who have heard all events."""
        self._untold: OrderedDict[bytes, bool] = OrderedDict()  # hash -> whether it came (or went), in order
        self._event_id = 0
        self.groups = ONE_GROUP
        """The engine's, once it is there."""

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            self._record(event.block_hash, came=event.kind == "added")

    def clear(self) -> None:
        """The engine was replaced: everything it had is gone."""
        for block_hash in [*self._untold, *(each for bucket in self._told for each in bucket)]:
            self._record(block_hash, came=False)

    def overlap_blocks(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of `hashes` the engine need not compute."""
        return self.groups.reusable_blocks(hashes, self._has)

    def drain(self) -> PrefixDelta:
        """The oldest untold changes. `event_id` counts every change told so far, these included."""
        added: list[bytes] = []
        removed: list[bytes] = []
        for _ in range(min(len(self._untold), MAX_EVENTS_PER_BEAT)):
            block_hash, came = self._untold.popitem(last=False)
            if came:
                self._told[block_hash[0]].add(block_hash)
                added.append(block_hash)
            else:
                self._told[block_hash[0]].discard(block_hash)
                removed.append(block_hash)
        self._event_id += len(added) + len(removed)
        return PrefixDelta(self._event_id, pack_hashes(added), pack_hashes(removed))

    def snapshot(self, bucket: int = 0) -> Snapshot:
        """A page, from `bucket` on, of what a listener that heard every event up to its `prefix_event_id`
        knows. Raises InvalidRequest for a bucket that does not exist."""
        if not 0 <= bucket < BUCKETS:
            raise InvalidRequest(f"the prefix cache has no bucket {bucket}; ask for 0 to {BUCKETS - 1}")
        page: list[bytes] = []
        end = bucket
        while end < BUCKETS and (end == bucket or len(page) + len(self._told[end]) <= MAX_PAGE_HASHES):
            page += self._told[end]
            end += 1
        return Snapshot(self._event_id, pack_hashes(page), next_bucket=end % BUCKETS)

    def _has(self, block_hash: bytes) -> bool:
        came = self._untold.get(block_hash)
        return block_hash in self._told[block_hash[0]] if came is None else came

    def _record(self, block_hash: bytes, *, came: bool) -> None:
        if self._has(block_hash) == came:
            return
        if block_hash in self._untold:
            del self._untold[block_hash]  # came and went (or the reverse) before anybody was told
        else:
            self._untold[block_hash] = came
