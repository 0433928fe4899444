"""Which blocks a sequence has: given, shared, named in the prefix cache, lost and given again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.offloader import Offloader
from shared.engine.sequence import LiveSequence, SequenceStatus, blocks_for
from shared.errors import InternalError, Overloaded
from shared.kv_hash import HASH_BLOCK_TOKENS

RETRY_AFTER_MS = 100


class BlockManager:
    """Between sequences and the BlockPool.

    `copy_block(source, target)` copies KV of a block that is shared before its holder writes into it. With an
    `offloader` the KV of sequences that lose their blocks may be kept elsewhere.
    """

    def __init__(
        self, blocks: BlockPool, copy_block: Callable[[int, int], None], offloader: Offloader | None
    ) -> None:
        self._blocks = blocks
        self._copy_block = copy_block
        self._offloader = offloader

    # --- coming and going ---

    def cached_tokens(self, sequence: LiveSequence) -> int:
        """How many of its tokens the prefix cache would save it from computing."""
        return len(self._blocks.match(sequence.reusable_names)) * HASH_BLOCK_TOKENS

    def allocate_blocks(self, sequence: LiveSequence, num_tokens: int, max_cached: int) -> int:
        """Give `sequence` blocks for `num_tokens`; the first, at most `max_cached` of them, come filled from
        the prefix cache.

        Returns how many of them do. Raises Overloaded, changing nothing, when too few are free.
        """
        cached = self._blocks.match(sequence.chain.hashes[:max_cached])
        self._blocks.retain(cached)
        missing = blocks_for(num_tokens) - len(cached)
        if missing > self._blocks.num_free:
            self._blocks.free(cached)
            raise Overloaded(
                f"{missing} KV blocks are needed and {self._blocks.num_free} are free; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        sequence.blocks = cached + self._blocks.allocate(missing)
        sequence.num_computed = len(cached) * HASH_BLOCK_TOKENS
        sequence.num_committed_blocks = len(cached)
        return len(cached)

    def share_blocks(self, sequence: LiveSequence, source: LiveSequence) -> None:
        """`sequence`, whose tokens are the first ones of `source`, shares their blocks; all but its last
        token are computed."""
        sequence.num_computed = len(sequence.tokens) - 1
        sequence.num_committed_blocks = min(
            source.num_committed_blocks, sequence.num_computed // HASH_BLOCK_TOKENS
        )
        sequence.blocks = source.blocks[: blocks_for(len(sequence.tokens))]
        self._blocks.retain(sequence.blocks)

    def rewind(self, sequence: LiveSequence, common: int, num_kept: int, num_tokens: int) -> None:
        """Keep KV of its first `num_kept` tokens alone, and give it blocks for `num_tokens`; its tokens will
        differ behind the first `common`.

        A block that is kept in part and has a name is given back with those behind it, because nobody may
        write into it. Raises Overloaded when too few are free; what was to be kept is there then.
        """
        self._adopt_anchors(sequence)
        full = num_kept // HASH_BLOCK_TOKENS
        sequence.num_computed = num_kept
        if full < sequence.num_committed_blocks:
            self._blocks.free(sequence.blocks[full:])
            del sequence.blocks[full:]
            sequence.num_committed_blocks = full
            sequence.num_computed = full * HASH_BLOCK_TOKENS
        del sequence.chain.hashes[common // HASH_BLOCK_TOKENS :]
        missing = blocks_for(num_tokens) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self._blocks.allocate(missing)

    def _adopt_anchors(self, sequence: LiveSequence) -> None:
        """Its KV is promised to nobody any more: where others had the names of its blocks first, it goes on
        with theirs."""
        if sequence.anchors:
            owners = self._blocks.match(sequence.chain.hashes[: sequence.num_committed_blocks])
            self._blocks.retain(owners)
            self._blocks.free([*sequence.anchors, *sequence.blocks[: len(owners)]])
            sequence.blocks[: len(owners)] = owners
            sequence.anchors = []

    def free_blocks(self, sequence: LiveSequence) -> None:
        """It is gone: give back all that it has."""
        if self._offloader is not None:
            self._offloader.forget(sequence)
        self._blocks.free(sequence.all_blocks)

    # --- the prefix cache ---

    def commit(self, sequence: LiveSequence) -> None:
        """Name its full blocks in the prefix cache.

        Where another block has the name already, the sequence goes on with that one, or, where its own is
        promised to somebody, holds on to both: whoever holds a named block holds those before it.
        """
        full = sequence.num_computed // HASH_BLOCK_TOKENS
        if full == sequence.num_committed_blocks or not self._blocks.prefix_cache:
            return
        sequence.chain.extend(sequence.tokens, full)
        for index in range(sequence.num_committed_blocks, min(full, len(sequence.chain.hashes))):
            own = sequence.blocks[index]
            owner = self._blocks.commit(own, sequence.chain.hashes[index])
            if owner != own and sequence.pinned:
                sequence.anchors.append(owner)
            elif owner != own:
                sequence.blocks[index] = owner
                self._blocks.free([own])
        sequence.num_committed_blocks = full

    def catch_up(self, sequence: LiveSequence) -> int:
        """Go on behind what others have computed of its next blocks by now; returns how many tokens they are.

        Where its own blocks are promised to somebody they get copies.
        """
        first = sequence.num_computed // HASH_BLOCK_TOKENS
        found = self._blocks.match(sequence.reusable_names[first:])
        if not found:
            return 0
        if sequence.pinned:
            for own, source in zip(sequence.blocks[first:], found, strict=False):
                self._copy_block(source, own)
        before = sequence.num_computed
        sequence.num_computed = (first + len(found)) * HASH_BLOCK_TOKENS
        self.commit(sequence)
        return sequence.num_computed - before

    # --- the next write ---

    def is_secure(self, sequence: LiveSequence) -> bool:
        """There is room for the KV of its last token, in blocks that nobody else sees."""
        blocks, index = sequence.blocks, sequence.num_computed // HASH_BLOCK_TOKENS
        return len(sequence.tokens) <= len(blocks) * HASH_BLOCK_TOKENS and self._blocks.is_own(blocks[index])

    def secure(self, sequence: LiveSequence) -> bool:
        """Make it so: a copy of the block that is written next where that is shared, and new ones.

        False, and nothing happens, when too few blocks are free.
        """
        index = sequence.num_computed // HASH_BLOCK_TOKENS
        copies = index < len(sequence.blocks) and not self._blocks.is_own(sequence.blocks[index])
        missing = max(0, blocks_for(len(sequence.tokens)) - len(sequence.blocks))
        if copies + missing > self._blocks.num_free:
            return False
        if copies:
            (own,) = self._blocks.allocate(1)
            self._copy_block(sequence.blocks[index], own)
            self._blocks.free([sequence.blocks[index]])
            sequence.blocks[index] = own
        sequence.blocks += self._blocks.allocate(missing)
        return True

    def extend(self, sequence: LiveSequence, num_tokens: int) -> int:
        """Blocks for up to `num_tokens` more tokens, of those that are free; returns how many tokens fit."""
        missing = blocks_for(len(sequence.tokens) + num_tokens) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self._blocks.allocate(min(missing, self._blocks.num_free))
        return min(num_tokens, len(sequence.blocks) * HASH_BLOCK_TOKENS - len(sequence.tokens))

    # --- preemption ---

    def preempt(self, sequence: LiveSequence) -> None:
        """Take all its blocks; what it has computed is offloaded if that pays."""
        if self._offloader is not None:
            self._offloader.save(sequence)
        self._blocks.free(sequence.all_blocks)
        sequence.blocks, sequence.anchors = [], []
        sequence.num_computed = sequence.num_committed_blocks = 0
        sequence.drafts = ()
        sequence.prefilling = True
        sequence.status = SequenceStatus.PREEMPTED

    def can_resume(self, sequence: LiveSequence) -> bool:
        cached = self._blocks.match(sequence.reusable_names)
        free = self._blocks.num_free - self._blocks.num_unheld(cached)
        return blocks_for(len(sequence.tokens)) - len(cached) <= free

    def landed(self, sequence: LiveSequence) -> bool:
        """What `resume` brings back is at hand; where it is not, it is being read from now on."""
        return self._offloader is None or self._offloader.landed(sequence)

    def resume(self, sequence: LiveSequence) -> None:
        """Blocks for all its tokens, filled from the prefix cache and from where it was offloaded to."""
        self.allocate_blocks(sequence, len(sequence.tokens), sequence.max_reusable_blocks)
        sequence.status = SequenceStatus.ACTIVE
        if self._offloader is not None:
            self._offloader.restore(sequence)
            self.commit(sequence)

    # --- integrity ---

    def check(self, sequences: Iterable[LiveSequence], blocks: range | None = None) -> None:
        """Raise InternalError unless `sequences` explain every reference (to `blocks`), every length and all
        that is offloaded."""
        sequences = list(sequences)
        self._blocks.check([sequence.all_blocks for sequence in sequences], blocks)
        if self._offloader is not None:
            self._offloader.check(sequences)
        for sequence in sequences:
            covered = len(sequence.blocks) * HASH_BLOCK_TOKENS
            if not 0 <= sequence.num_computed <= covered:
                raise InternalError(f"{sequence.key!r} computed {sequence.num_computed} of {covered} places")
            if (sequence.status is SequenceStatus.PREEMPTED) != (not sequence.blocks):
                raise InternalError(
                    f"{sequence.key!r} is {sequence.status.value} with {len(sequence.blocks)} blocks"
                )
            if sequence.status is SequenceStatus.ACTIVE and sequence.num_uncomputed < 1:
                raise InternalError(f"{sequence.key!r} is active with nothing to compute")
