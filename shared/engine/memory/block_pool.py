"""Count who holds which KV block: reference counts, the prefix cache, and what to evict. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.memory.blank_blocks import BlankBlocks
from shared.engine.memory.tenant_blocks import TenantBlocks
from shared.errors import InternalError, Overloaded
from shared.fairness.share import OPEN_SHARE, TenantShare


class BlockEvent(NamedTuple):
    """A block hash that entered or left the prefix cache since the last drain."""

    kind: Literal["added", "removed"]
    block_hash: bytes


class BlockPool:
    """Counts references to `num_blocks` block ids and remembers which of them hold a known prefix: a name and
    the group of layers that it is of. Any block may be of any group.

    A block is held (references > 0), cached (no reference, but its hash still finds it) or blank. Cached
    blocks are evicted only when no blank one is left: the least recently used one of the tenant that has most
    (`TenantBlocks`). Where sequences hold all their blocks that is always a leaf, a block whose followers are
    gone: a follower's holders hold it too, and give it back last. Where they give back what is behind their
    window, that goes first. Blocks that are idle for long retire: they are blank, and take no memory until
    they are needed (`retire`)."""

    def __init__(
        self,
        num_blocks: int,
        groups: KvGroups = ONE_GROUP,
        *,
        prefix_cache: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.num_blocks = num_blocks
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._blank = BlankBlocks(num_blocks, clock)
        self._cached = TenantBlocks(num_blocks, clock)
        self._hash_of: dict[int, tuple[bytes, int]] = {}  # block -> hash, group
        self._blocks_of: list[dict[bytes, int]] = [{} for _ in range(groups.count)]  # group: hash -> block
        self._groups = groups
        self._pending_events: dict[bytes, Literal["added", "removed"]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now, evicting cached ones if it must."""
        return len(self._blank) + len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that a hash finds, held or not."""
        return len(self._hash_of)

    @property
    def num_resident(self) -> int:
        """Blocks that were used since they last gave their memory back, if they ever did."""
        return self.num_blocks - self._blank.num_unused

    @property
    def is_unused(self) -> bytearray:
        """1 for each block that is not resident, else 0; to be read alone."""
        return self._blank.is_unused

    def cached_hashes(self) -> list[bytes]:
        """Every hash that is told of what the prefix cache can answer: the snapshot behind the events."""
        told = (self._told(*named) for named in self._hash_of.values())
        return [block_hash for block_hash in told if block_hash is not None]

    def match(self, hashes: Sequence[bytes], group: int = 0) -> list[int]:
        """Blocks of the longest cached run from the start of `hashes`. Takes no reference."""
        blocks: list[int] = []
        known = self._blocks_of[group]
        for block_hash in hashes:
            block = known.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, block_hash: bytes, group: int = 0) -> int | None:
        return self._blocks_of[group].get(block_hash)

    def num_unheld(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` nobody holds: retaining those takes them from `num_free`."""
        return sum(self._references[block] == 0 for block in blocks)

    def num_of(self, tenant: str) -> int:
        """Return how many blocks are the tenant's, those that it holds and those that are cached."""
        return self._cached.num_of(tenant)

    def retain(self, blocks: Iterable[int], share: TenantShare = OPEN_SHARE) -> None:
        """Add a reference to blocks that `match` found, for a sequence of `share`."""
        for block in blocks:
            if self._references[block] == 0:
                self._cached.hold(block, share)
            self._references[block] += 1

    def allocate(self, count: int, share: TenantShare = OPEN_SHARE) -> list[int]:
        """`count` blocks with one reference each and no known content, for a sequence of `share`. Raises
        Overloaded, taking none."""
        if count > self.num_free:
            raise Overloaded(f"{count} KV blocks are needed and {self.num_free} are free; try again later")
        return [self._take(share) for _ in range(count)]

    def free(self, blocks: Iterable[int], stay_s: float = 0.0) -> None:
        """Drop one reference from each block. Pass a sequence's blocks in order. `stay_s` as for a
        `TenantBlocks`.

        They are given back last to first, so the tail of a prefix is evicted before its head.
        """
        for block in reversed(list(blocks)):
            if self._references[block] <= 0:
                raise InternalError(f"KV block {block} was freed more often than it was taken")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._cached.rest(block, stay_s)
                else:
                    self._cached.give_back(block)
                    self._blank.add(block)

    def commit(self, block: int, block_hash: bytes, group: int = 0) -> int:
        """The content of held block `block` is final and named `block_hash`; returns who of `group` has that
        name.

        That is `block` itself, or the block that had the name first: the caller then holds a reference to it
        too. Whoever names blocks names them from the start of its sequence and, without a window, holds those
        before by these references: so no block is given back while one that follows it is held.
        """
        if not self.prefix_cache:
            return block
        owner = self._blocks_of[group].get(block_hash)
        if owner is None and block not in self._hash_of:
            self._hash_of[block] = block_hash, group
            self._blocks_of[group][block_hash] = block
            self._record(block_hash, group, "added")
            return block
        if owner is None:
            raise InternalError(f"KV block {block} has a name already and was given another")
        if owner != block:
            self.retain([owner])
        return owner

    def is_own(self, block: int) -> bool:
        """Return whether its one holder may write into it: nobody shares it and no hash promises its
        content."""
        return self._references[block] == 1 and block not in self._hash_of

    def retire(self, blank_since_s: float, cached_since_s: float, most: int) -> list[int]:
        """Return at most `most` blocks that give their memory back now; nobody holds them.

        Those that are blank since `blank_since_s` or longer come first: nothing is lost with them. Then those
        that rest in the prefix cache since `cached_since_s`, each tenant's least recently used ones first,
        and that nobody is expected to come back for: the cache forgets them.
        """
        retired = self._blank.take_idle(blank_since_s, most)
        for block in self._cached.take_idle(cached_since_s, most - len(retired)):
            self._forget(block)
            retired.append(block)
        for block in retired:
            self._blank.add_unused(block)
        return retired

    def next_idle_s(self, blank_idle_s: float, cached_idle_s: float) -> float:
        """Return the time from which on `retire` may find blocks that are blank or cached for so long, unless
        they are used before; infinity: none."""
        return min(self._blank.oldest_s() + blank_idle_s, self._cached.next_idle_s(cached_idle_s))

    def drain_events(self) -> list[BlockEvent]:
        """Net changes of the prefix cache since the last call.

        A hash that came and went in between is not told, so at most 2 x num_blocks events can wait.
        """
        events = [BlockEvent(kind, block_hash) for block_hash, kind in self._pending_events.items()]
        self._pending_events.clear()
        return events

    def check(self, holders: Iterable[Sequence[int]], blocks: range | None = None) -> None:
        """Raise InternalError unless `holders` (the blocks of every sequence) explain every reference, and
        every block is where it belongs. With `blocks`, of those alone: as fast in a pool of any size.
        """
        chosen = range(self.num_blocks) if blocks is None else blocks
        expected = Counter(block for held in holders for block in held if block in chosen)
        resting = 0
        for block in chosen:
            references, explained = self._references[block], expected.get(block, 0)
            if references != explained:
                raise InternalError(f"KV block {block} has {references} references, {explained} explained")
            is_blank, name = block in self._blank, self._hash_of.get(block)
            if is_blank and not references and name is None and not self._cached.is_owned(block):
                resting += 1  # as most are
                continue
            is_cached = block in self._cached
            if is_blank + is_cached != (references == 0):
                raise InternalError(f"KV block {block} is free twice, free while it is held, or neither")
            if (is_cached and name is None) or (is_blank and name is not None):
                raise InternalError(f"KV block {block} is cached without a hash, or blank with one")
            if is_blank == self._cached.is_owned(block):
                raise InternalError(f"KV block {block} is blank and a tenant's, or neither")
            if name is not None and self._blocks_of[name[1]].get(name[0]) != block:
                raise InternalError("the prefix cache's two directions disagree")
            resting += references == 0
        if len(self._hash_of) != sum(map(len, self._blocks_of)):
            raise InternalError("the prefix cache's two directions disagree")
        if blocks is None and resting != self.num_free:
            raise InternalError("something is free that is no KV block of this pool")

    def _take(self, share: TenantShare) -> int:
        if self._blank:
            block = self._blank.take()
        else:
            block = self._cached.evict(share)
            self._forget(block)
        self._cached.take(block, share)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        """The prefix cache has the block no more."""
        block_hash, group = self._hash_of.pop(block)
        del self._blocks_of[group][block_hash]
        self._record(block_hash, group, "removed")

    def _record(self, block_hash: bytes, group: int, kind: Literal["added", "removed"]) -> None:
        """Opposite changes of one hash cancel out."""
        told = self._told(block_hash, group)
        if told is None:
            return
        if self._pending_events.get(told, kind) != kind:
            del self._pending_events[told]
        else:
            self._pending_events[told] = kind

    def _told(self, block_hash: bytes, group: int) -> bytes | None:
        """Return what others hear of it: groups of one kind come and go together, so the first of each
        stands for
        them."""
        if group == self._groups.full_attention:
            return self._groups.windowed_hash(block_hash)
        return None if group else block_hash
