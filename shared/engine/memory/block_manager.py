"""Which blocks a sequence has: shared, named in the prefix cache, given back behind its window, lost and
given again.

Where every layer has a window, a row reads the last `window.tokens` tokens alone. Blocks of tokens before
that go back to the pool as the sequence goes on: in `LiveSequence.blocks` they are NO_BLOCK, in the prefix
cache they stay what they are until somebody needs the room. Nobody outside looks at them: a transfer, an
offload, a fork and a rewind begin with the first block that the window of the next row reaches
(`KvWindow.first_block`), and a prefix is found again where the blocks of the window at its end are
(`KvWindow.reusable_blocks`), whatever became of those before. Prompts are given blocks as they come to
them: what the window holds and the rows of a step.

Preempted sequences may lose them again; those whose KV is promised to somebody may not, and hold from the
start what they will ever hold at once: the blocks that are promised, those of the window at the prompt's
end, and as many as a window and a step need on the way there (`Turnover`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.engine.memory.allotment import Allotment
from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.offloader import Offloader
from shared.engine.sequence import NO_BLOCK, LiveSequence, SequenceStatus, blocks_for
from shared.errors import InternalError, Overloaded
from shared.kv_hash import HASH_BLOCK_TOKENS


class BlockManager:
    """Between sequences and the BlockPool.

    `copy_block(source, target)` copies KV of a block that is shared before its holder writes into it. With an
    `offloader` the KV of sequences that lose their blocks may be kept elsewhere.
    """

    def __init__(
        self,
        blocks: BlockPool,
        copy_block: Callable[[int, int], None],
        offloader: Offloader | None,
        allotment: Allotment,
    ) -> None:
        self._blocks = blocks
        self._copy_block = copy_block
        self._offloader = offloader
        self._allotment = allotment
        self._window = allotment.window
        self._unnamed: dict[bytes, int] = {}
        """Blocks of a turnover, by the names that they will get."""

    # --- coming and going ---

    def cached_tokens(self, sequence: LiveSequence) -> int:
        """How many of its tokens the prefix cache would save it from computing."""
        return len(self._allotment.reusable(sequence.reusable_names)) * HASH_BLOCK_TOKENS

    def can_share(self, source: LiveSequence, num_computed: int) -> bool:
        """Whether `source` still holds what rows from `num_computed` on read."""
        return source.num_passed <= self._window.first_block(num_computed)

    def share_blocks(self, sequence: LiveSequence, source: LiveSequence) -> None:
        """`sequence`, whose tokens are the first ones of `source`, shares their blocks; all but its last
        token are computed."""
        sequence.num_computed = len(sequence.tokens) - 1
        sequence.num_committed_blocks = min(
            source.num_committed_blocks, sequence.num_computed // HASH_BLOCK_TOKENS
        )
        first = sequence.num_passed = self._window.first_block(sequence.num_computed)
        sequence.blocks = [NO_BLOCK] * first + source.blocks[first : blocks_for(len(sequence.tokens))]
        self._blocks.retain(sequence.blocks[first:])

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
        cut = full < sequence.num_committed_blocks
        computed, length = (full * HASH_BLOCK_TOKENS, full) if cut else (num_kept, len(sequence.blocks))
        missing = blocks_for(num_tokens) - length
        passed = not self.can_share(sequence, computed)
        if passed or (self._window.tokens and missing > self._allotment.most_turning):
            self._start_over(sequence, num_tokens, full)
            return
        sequence.num_computed = computed
        self._blocks.free(sequence.blocks[length:])
        del sequence.blocks[length:]
        sequence.num_committed_blocks = min(sequence.num_committed_blocks, full)
        if missing > 0:
            sequence.blocks += self._blocks.allocate(missing)

    def _start_over(self, sequence: LiveSequence, num_tokens: int, max_cached: int) -> None:
        self._blocks.free(sequence.all_blocks)
        try:
            self._allotment.allocate_blocks(sequence, num_tokens, max_cached)
        except Overloaded:
            sequence.blocks = self._blocks.allocate(1)
            sequence.num_passed = sequence.num_computed = sequence.num_committed_blocks = 0
            raise

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
        if sequence.turnover is not None:
            self._name(sequence, self._turning(sequence))
        self._blocks.free(sequence.all_blocks)

    # --- the prefix cache ---

    def commit(self, sequence: LiveSequence) -> None:
        """Name its full blocks in the prefix cache, and give back those behind its window.

        Where another block has the name already, the sequence goes on with that one, or, where its own is
        promised to somebody, holds on to both: whoever holds a named block holds those before it, unless they
        are behind a window.
        """
        full = sequence.num_computed // HASH_BLOCK_TOKENS
        if full > sequence.num_committed_blocks and self._blocks.prefix_cache:
            sequence.chain.extend(sequence.tokens, full)
            turning = self._turning(sequence)
            fresh = range(sequence.num_committed_blocks, full)
            self._name(sequence, (index for index in fresh if index not in turning))
            self._announce(sequence, (index for index in fresh if index in turning))
            sequence.num_committed_blocks = full
        first = self._window.first_block(sequence.num_computed)
        if sequence.first_promised is not None:
            first = min(first, sequence.first_promised)
        if first > sequence.num_passed:
            self._pass(sequence, first)

    def _name(self, sequence: LiveSequence, indices: Iterable[int]) -> None:
        """Those of its full blocks, as far as it knows their names."""
        names = sequence.chain.hashes
        for index in indices:
            own = sequence.blocks[index]
            if index >= len(names) or own == NO_BLOCK:
                continue
            if self._unnamed.get(names[index]) == own:
                del self._unnamed[names[index]]
            owner = self._blocks.commit(own, names[index])
            if owner == own:
                continue
            if not sequence.pinned:
                sequence.blocks[index] = owner
                self._blocks.free([own])
            elif self._window.tokens:
                self._blocks.free([owner])
            else:
                sequence.anchors.append(owner)

    def _announce(self, sequence: LiveSequence, indices: Iterable[int]) -> None:
        """Those that get their names later may be copied by whoever comes to them next."""
        for index in indices:
            if index < len(sequence.chain.hashes):
                self._unnamed.setdefault(sequence.chain.hashes[index], sequence.blocks[index])

    def _turning(self, sequence: LiveSequence) -> range:
        """Its full blocks that get their names when they are given back."""
        turnover = sequence.turnover
        if turnover is None:
            return range(0)
        full = sequence.num_computed // HASH_BLOCK_TOKENS
        return range(max(turnover.first, sequence.num_passed), min(turnover.end, full))

    def _pass(self, sequence: LiveSequence, first: int) -> None:
        """Give back the blocks before `first`, the earliest to be evicted first, and take as many for a
        prompt that waits for them."""
        turnover = sequence.turnover
        if turnover is not None:
            self._name(sequence, (index for index in self._turning(sequence) if index < first))
        passed = sequence.blocks[sequence.num_passed : first]
        for block in passed:
            self._blocks.free([block])
        sequence.blocks[sequence.num_passed : first] = [NO_BLOCK] * len(passed)
        sequence.num_passed = first
        if turnover is None:
            return
        given = max(turnover.first, first) + self._allotment.most_turning
        given = min(turnover.end, given)
        sequence.blocks[turnover.given : given] = self._blocks.allocate(given - turnover.given)
        turnover.given = given
        if given == turnover.end:  # it needs no more, so that others may hold them too
            self._name(sequence, self._turning(sequence))
            sequence.turnover = None

    def catch_up(self, sequence: LiveSequence) -> int:
        """Go on behind what others have computed of its next blocks by now; returns how many tokens they are.

        Where its own blocks are promised to somebody they get copies.
        """
        first = sequence.num_computed // HASH_BLOCK_TOKENS
        found = self._found(sequence.reusable_names[first : sequence.num_given])
        if not found:
            return 0
        for own, (source, named) in zip(sequence.blocks[first:], found, strict=False):
            if sequence.pinned or not named:
                self._copy_block(source, own)
        before = sequence.num_computed
        sequence.num_computed = (first + len(found)) * HASH_BLOCK_TOKENS
        self.commit(sequence)
        return sequence.num_computed - before

    def _found(self, names: Iterable[bytes]) -> list[tuple[int, bool]]:
        """Blocks of the longest run that somebody has computed; which of them have their names already."""
        found: list[tuple[int, bool]] = []
        for name in names:
            named = self._blocks.find(name)
            block = self._unnamed.get(name) if named is None else named
            if block is None:
                break
            found.append((block, named is not None))
        return found

    # --- the next write ---

    def is_secure(self, sequence: LiveSequence) -> bool:
        """There is room for the KV of its next rows, or of its last token, in blocks that nobody else
        sees."""
        blocks, index = sequence.blocks, sequence.num_computed // HASH_BLOCK_TOKENS
        reach = self._allotment.reach(sequence.num_computed, len(sequence.tokens))
        return reach <= sequence.num_given * HASH_BLOCK_TOKENS and self._blocks.is_own(blocks[index])

    def secure(self, sequence: LiveSequence) -> bool:
        """Make it so: a copy of the block that is written next where that is shared, and new ones.

        False, and nothing happens, when too few blocks are free.
        """
        index = sequence.num_computed // HASH_BLOCK_TOKENS
        copies = index < len(sequence.blocks) and not self._blocks.is_own(sequence.blocks[index])
        reach = self._allotment.reach(sequence.num_computed, len(sequence.tokens))
        missing = max(0, blocks_for(reach) - len(sequence.blocks))
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
        sequence.num_passed = sequence.num_computed = sequence.num_committed_blocks = 0
        sequence.drafts = ()
        sequence.prefilling = True
        sequence.status = SequenceStatus.PREEMPTED

    def can_resume(self, sequence: LiveSequence) -> bool:
        """Whether there are blocks for it, with what was offloaded and, should that be lost, without."""
        cached = self._allotment.reusable(sequence.reusable_names)
        num_cached = len(cached) * HASH_BLOCK_TOKENS
        places = {num_cached, max(num_cached, sequence.offloaded_tokens)}
        return all(self._allotment.fits(sequence, cached, place) for place in places)

    def landed(self, sequence: LiveSequence) -> bool:
        """What `resume` brings back is at hand; where it is not, it is being read from now on."""
        return self._offloader is None or self._offloader.landed(sequence)

    def resume(self, sequence: LiveSequence) -> None:
        """Blocks for its tokens, filled from the prefix cache and from where it was offloaded to."""
        cached = self._allotment.reusable(sequence.reusable_names)
        num_computed = len(cached) * HASH_BLOCK_TOKENS
        saved = self._offloader.take(sequence, num_computed) if self._offloader is not None else None
        if saved is not None:
            num_computed = saved.num_tokens
            first = self._window.first_block(num_computed)
            cached = [NO_BLOCK] * first + cached[first:]
        end = blocks_for(self._allotment.reach(num_computed, len(sequence.tokens)))
        self._allotment.hold(sequence, cached, end - len(cached))
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
        turning = (sequence for sequence in sequences if sequence.turnover is not None)
        if not {block for each in turning for block in each.blocks}.issuperset(self._unnamed.values()):
            raise InternalError("a block that nobody holds waits for its name")
        for sequence in sequences:
            covered = sequence.num_given * HASH_BLOCK_TOKENS
            if not 0 <= sequence.num_computed <= covered:
                raise InternalError(f"{sequence.key!r} computed {sequence.num_computed} of {covered} places")
            held = sum(block != NO_BLOCK for block in sequence.blocks)
            passed = sequence.blocks[: sequence.num_passed]
            if held != sequence.num_held or passed != [NO_BLOCK] * len(passed):
                raise InternalError(
                    f"{sequence.key!r} holds {held} blocks, {sequence.num_held} are explained"
                )
            waits = sequence.status in (SequenceStatus.RESERVED, SequenceStatus.PREEMPTED)
            if not waits and sequence.num_passed > self._window.first_block(sequence.num_computed):
                raise InternalError(f"{sequence.key!r} has given back what its window still reads")
            if (sequence.status is SequenceStatus.PREEMPTED) != (not sequence.blocks):
                raise InternalError(
                    f"{sequence.key!r} is {sequence.status.value} with {len(sequence.blocks)} blocks"
                )
            if sequence.status is SequenceStatus.ACTIVE and sequence.num_uncomputed < 1:
                raise InternalError(f"{sequence.key!r} is active with nothing to compute")
