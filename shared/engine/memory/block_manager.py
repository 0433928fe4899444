"""Manage the blocks of sequences: shared, named in the prefix cache, given back behind a window, lost and
given
again.

A sequence has a table of blocks for each group of layers (`LayerGroups`): all that follows holds of every
table by itself, and a sequence goes on from one place in all of them.

In a group whose layers have a window a row reads the last `window.tokens` tokens alone. Blocks of tokens
before that go back to the pool as the sequence goes on: in its table they are NO_BLOCK, in the prefix cache
they stay what they are until somebody needs the room. Nobody outside looks at them: a transfer, an offload,
a fork and a rewind begin with the first block that the window of the next row reaches
(`KvWindow.first_block`), and a prefix is found again where the blocks of the window at its end are
(`KvWindow.reusable_blocks`), whatever became of those before. Prompts are given blocks as they come to
them: what the window holds and the rows of a step.

Preempted sequences may lose them again; those whose KV is promised to somebody may not, and hold from the
start what they will ever hold at once: the blocks that are promised, those of the window at the prompt's
end, and as many as a window and a step need on the way there (`Turnover`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.block_table import NO_BLOCK, BlockTable, in_order
from shared.engine.memory.allocation import Allocation
from shared.engine.memory.block_naming import BlockNaming
from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.offloader import Offloader
from shared.engine.memory.table_check import check_tables
from shared.engine.sequence import LiveSequence, SequenceStatus, blocks_for
from shared.errors import Overloaded
from shared.fairness.share import TenantShare


class BlockManager:
    """The manager between sequences and the BlockPool.

    `copy_block(source, target)` copies KV of a block that is shared before its holder writes into it. With an
    `offloader` the KV of sequences that lose their blocks may be kept elsewhere.
    """

    def __init__(
        self,
        blocks: BlockPool,
        copy_block: Callable[[int, int], None],
        offloader: Offloader | None,
        allocation: Allocation,
    ) -> None:
        self._blocks = blocks
        self._copy_block = copy_block
        self._offloader = offloader
        self._allocation = allocation
        self.is_whole = allocation.is_whole
        """Whether a sequence has one table, of which no block is given back as it goes on."""
        self._naming = BlockNaming(blocks, allocation)
        self.commit = self._naming.commit

    # --- coming and going ---

    def cached_tokens(self, sequence: LiveSequence) -> int:
        """Return how many of its tokens the prefix cache would save it from computing."""
        return len(self._allocation.reusable(sequence.reusable_names)[0]) * HASH_BLOCK_TOKENS

    def can_share(self, source: LiveSequence, num_computed: int) -> bool:
        """Return whether `source` still holds what rows from `num_computed` on read."""
        return all(table.num_passed <= table.window.first_block(num_computed) for table in source.tables)

    def share_blocks(self, sequence: LiveSequence, source: LiveSequence) -> None:
        """`sequence`, whose tokens are the first ones of `source`, shares their blocks; all but its last
        token are computed."""
        sequence.num_computed = len(sequence.tokens) - 1
        end = blocks_for(len(sequence.tokens))
        for theirs in source.tables:
            first = theirs.window.first_block(sequence.num_computed)
            committed = min(theirs.num_committed, sequence.num_computed // HASH_BLOCK_TOKENS)
            blocks = [NO_BLOCK] * first + theirs.blocks[first:end]
            sequence.tables.append(BlockTable(theirs.group, theirs.window, blocks, first, committed))
            self._blocks.retain(blocks[first:])

    def branch_blocks(
        self, sequence: LiveSequence, source: LiveSequence, num_kept: int, num_tokens: int
    ) -> None:
        """`sequence` shares KV of its first `num_kept` tokens with `source`, which may go on, and gets blocks
        for `num_tokens`: the full ones are the same, the other is a copy. Raises Overloaded, taking none."""
        full, end = num_kept // HASH_BLOCK_TOKENS, blocks_for(num_tokens)
        new = self._blocks.allocate((end - full) * len(source.tables), source.share)
        for theirs in source.tables:
            own, new = new[: end - full], new[end - full :]
            if num_kept % HASH_BLOCK_TOKENS:
                self._copy_block(theirs.blocks[full], own[0])
            first = min(full, theirs.window.first_block(num_kept))
            shared = theirs.blocks[first:full]
            self._blocks.retain(shared, source.share)
            blocks = [NO_BLOCK] * first + shared + own
            committed = min(theirs.num_committed, full)
            sequence.tables.append(BlockTable(theirs.group, theirs.window, blocks, first, committed))
        sequence.num_computed = num_kept

    def borrow(self, table: BlockTable, blocks: list[int], share: TenantShare) -> None:
        """Hold the next `blocks` of another sequence's table as well; they are final."""
        self._blocks.retain(blocks, share)
        table.blocks += blocks
        table.num_committed = len(table.blocks)

    def trim(self, sequence: LiveSequence) -> None:
        """Give back blocks behind its tokens."""
        end = blocks_for(len(sequence.tokens))
        self._blocks.free(in_order([table.blocks[end:] for table in sequence.tables]))
        for table in sequence.tables:
            del table.blocks[end:]

    def rewind(self, sequence: LiveSequence, common: int, num_kept: int, num_tokens: int) -> None:
        """Keep KV of its first `num_kept` tokens alone, and give it blocks for `num_tokens`; its tokens will
        differ behind the first `common`.

        A block that is kept in part and has a name is given back with those behind it, because nobody may
        write into it. Where the window of what is kept has been given back already, the sequence goes on
        behind what the prefix cache has. Raises Overloaded when too few are free; what was to be kept is
        there then, or nothing where it goes on elsewhere.
        """
        self._adopt_anchors(sequence)
        del sequence.chain.hashes[common // HASH_BLOCK_TOKENS :]
        full = num_kept // HASH_BLOCK_TOKENS
        cut = any(full < table.num_committed for table in sequence.tables)
        computed = full * HASH_BLOCK_TOKENS if cut else num_kept
        lengths = [full if cut else len(table.blocks) for table in sequence.tables]
        missing = [max(0, blocks_for(num_tokens) - length) for length in lengths]
        if not self.can_share(sequence, computed) or any(
            table.window.tokens and more > self._allocation.most_turning(table.window)
            for table, more in zip(sequence.tables, missing, strict=True)
        ):
            self._start_over(sequence, num_tokens, full)
            return
        sequence.num_computed = computed
        self._blocks.free(
            in_order([table.blocks[end:] for table, end in zip(sequence.tables, lengths, strict=True)])
        )
        for table, end in zip(sequence.tables, lengths, strict=True):
            del table.blocks[end:]
            table.num_committed = min(table.num_committed, full)
        self._lengthen(sequence, missing)

    def _start_over(self, sequence: LiveSequence, num_tokens: int, max_cached: int) -> None:
        self._blocks.free(sequence.all_blocks)
        try:
            self._allocation.allocate_blocks(sequence, num_tokens, max_cached)
        except Overloaded:
            sequence.tables = [
                BlockTable(table.group, table.window, self._blocks.allocate(1, sequence.share))
                for table in sequence.tables
            ]
            sequence.num_computed = 0
            raise

    def _lengthen(self, sequence: LiveSequence, missing: Iterable[int]) -> None:
        """Lengthen each table by so many new blocks. Raises Overloaded, taking none."""
        missing = list(missing)
        new = self._blocks.allocate(sum(missing), sequence.share)
        for table, count in zip(sequence.tables, missing, strict=True):
            table.blocks += new[:count]
            del new[:count]

    def _adopt_anchors(self, sequence: LiveSequence) -> None:
        """Its KV is promised to nobody any more: where others had the names of its blocks first, it goes on
        with theirs."""
        for table in sequence.tables:
            if not table.anchors:
                continue
            owners = self._blocks.match(sequence.chain.hashes[: table.num_committed], table.group)
            self._blocks.retain(owners, sequence.share)
            self._blocks.free([*table.anchors, *table.blocks[: len(owners)]])
            table.blocks[: len(owners)] = owners
            table.anchors = []

    def free_blocks(self, sequence: LiveSequence) -> None:
        """It is gone: give back all that it has."""
        if self._offloader is not None:
            self._offloader.forget(sequence)
        self._naming.give_up_turns(sequence)
        self._blocks.free(sequence.all_blocks, sequence.stay_s)

    def catch_up(self, sequence: LiveSequence) -> int:
        """Go on behind what others have computed of its next blocks by now; returns how many tokens they are.

        Where its own blocks are promised to somebody they get copies.
        """
        first = sequence.num_computed // HASH_BLOCK_TOKENS
        names = sequence.reusable_names[first : min(table.num_given for table in sequence.tables)]
        found = [self._naming.find_run(names, table.group) for table in sequence.tables]
        count = min(map(len, found))
        if not count:
            return 0
        for table, theirs in zip(sequence.tables, found, strict=True):
            for own, (source, named) in zip(table.blocks[first:], theirs[:count], strict=False):
                if sequence.pinned or not named:
                    self._copy_block(source, own)
        before = sequence.num_computed
        sequence.num_computed = (first + count) * HASH_BLOCK_TOKENS
        self.commit(sequence)
        return sequence.num_computed - before

    # --- the next write ---

    def insecure(self, sequences: Iterable[LiveSequence]) -> list[LiveSequence]:
        """Return those that lack room for the KV of their next rows, or of their last token, in blocks that
        nobody else sees."""
        if not self.is_whole:
            return [sequence for sequence in sequences if not self._is_secure(sequence)]
        is_own = self._blocks.is_own
        found = []
        for sequence in sequences:
            blocks = sequence.tables[0].blocks
            if len(sequence.tokens) > len(blocks) * HASH_BLOCK_TOKENS or not is_own(
                blocks[sequence.num_computed // HASH_BLOCK_TOKENS]
            ):
                found.append(sequence)
        return found

    def _is_secure(self, sequence: LiveSequence) -> bool:
        index, num_tokens = sequence.num_computed // HASH_BLOCK_TOKENS, len(sequence.tokens)
        for table in sequence.tables:
            reach = num_tokens
            if table.window.tokens:
                reach = self._allocation.reach(table.window, sequence.num_computed, num_tokens)
            if reach > table.num_given * HASH_BLOCK_TOKENS or not self._blocks.is_own(table.blocks[index]):
                return False
        return True

    def secure(self, sequence: LiveSequence) -> bool:
        """Make it so: a copy of the block that is written next where that is shared, and new ones.

        False, and nothing happens, when too few blocks are free.
        """
        index, num_tokens = sequence.num_computed // HASH_BLOCK_TOKENS, len(sequence.tokens)
        shared = [
            table
            for table in sequence.tables
            if index < len(table.blocks) and not self._blocks.is_own(table.blocks[index])
        ]
        ends = (
            blocks_for(self._allocation.reach(table.window, sequence.num_computed, num_tokens))
            for table in sequence.tables
        )
        missing = [max(0, end - len(table.blocks)) for table, end in zip(sequence.tables, ends, strict=True)]
        if len(shared) + sum(missing) > self._blocks.num_free:
            return False
        for table in shared:
            (own,) = self._blocks.allocate(1, sequence.share)
            self._copy_block(table.blocks[index], own)
            self._blocks.free([table.blocks[index]])
            table.blocks[index] = own
        self._lengthen(sequence, missing)
        return True

    def extend(self, sequence: LiveSequence, num_tokens: int) -> int:
        """Blocks for up to `num_tokens` more tokens, of those that are free; returns how many tokens fit."""
        for end in range(blocks_for(len(sequence.tokens) + num_tokens), 0, -1):
            missing = [max(0, end - len(table.blocks)) for table in sequence.tables]
            if sum(missing) <= self._blocks.num_free:
                break
        self._lengthen(sequence, missing)
        room = min(len(table.blocks) for table in sequence.tables) * HASH_BLOCK_TOKENS
        return min(num_tokens, room - len(sequence.tokens))

    # --- preemption ---

    def preempt(self, sequence: LiveSequence) -> None:
        """Take all its blocks; what it has computed is offloaded if that pays."""
        if self._offloader is not None:
            self._offloader.save(sequence)
        self._blocks.free(sequence.all_blocks)
        sequence.tables = []
        sequence.num_computed = 0
        sequence.drafts = ()
        sequence.prefilling = True
        sequence.status = SequenceStatus.PREEMPTED

    def can_resume(self, sequence: LiveSequence) -> bool:
        """Return whether there are blocks for it, with what was offloaded and, should that be lost,
        without."""
        found = self._allocation.reusable(sequence.reusable_names)
        num_cached = len(found[0]) * HASH_BLOCK_TOKENS
        places = {num_cached, max(num_cached, sequence.offloaded_tokens)}
        return all(self._allocation.fits(sequence, found, place) for place in places)

    def landed(self, sequence: LiveSequence) -> bool:
        """Return whether what `resume` brings back is at hand; where it is not, it is being read from now
        on."""
        return self._offloader is None or self._offloader.landed(sequence)

    def resume(self, sequence: LiveSequence) -> None:
        """Blocks for its tokens, filled from the prefix cache and from where it was offloaded to."""
        found = self._allocation.reusable(sequence.reusable_names)
        num_computed = len(found[0]) * HASH_BLOCK_TOKENS
        saved = self._offloader.take(sequence, num_computed) if self._offloader is not None else None
        self._allocation.resume(sequence, found, num_computed if saved is None else saved.num_tokens)
        sequence.status = SequenceStatus.ACTIVE
        if saved is not None:
            saved.fill(sequence)
            self.commit(sequence)

    # --- integrity ---

    def check(self, sequences: Iterable[LiveSequence], blocks: range | None = None) -> None:
        """Raise InternalError unless `sequences` explain every reference (to `blocks`), every length and all
        that is offloaded."""
        sequences = list(sequences)
        self._blocks.check([sequence.all_blocks for sequence in sequences], blocks)
        if self._offloader is not None:
            self._offloader.check(sequences)
        self._naming.check(sequences)
        for sequence in sequences:
            check_tables(sequence)
