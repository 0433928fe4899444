"""Name blocks in the prefix cache, and give them back to the pool once they are behind a
window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.block_table import NO_BLOCK, BlockTable
from shared.engine.memory.allocation import Allocation
from shared.engine.memory.block_pool import BlockPool
from shared.engine.sequence import LiveSequence
from shared.errors import InternalError


class BlockNaming:
    """The naming of all sequences' blocks, group by group."""

    def __init__(self, blocks: BlockPool, allocation: Allocation) -> None:
        self._blocks = blocks
        self._allocation = allocation
        self._unnamed: dict[tuple[bytes, int], int] = {}
        """Blocks of a turnover, by the names that they will get and their groups."""

    def commit(self, sequence: LiveSequence) -> None:
        """Name its full blocks in the prefix cache, and give back those behind its windows.

        Where another block has the name already, the sequence goes on with that one, or, where its own is
        promised to somebody, holds on to both: whoever holds a named block holds those before it, unless they
        are behind a window.
        """
        full = sequence.num_computed // HASH_BLOCK_TOKENS
        for table in sequence.tables:
            if full > table.num_committed and self._blocks.prefix_cache:
                sequence.chain.extend(sequence.tokens, full)
                turning = table.turning(sequence.num_computed)
                fresh = range(table.num_committed, full)
                self._name(sequence, table, (index for index in fresh if index not in turning))
                self._announce(sequence, table, (index for index in fresh if index in turning))
                table.num_committed = full
            if not table.window.tokens:
                continue
            first = table.window.first_block(sequence.num_computed)
            if table.first_promised is not None:
                first = min(first, table.first_promised)
            if first > table.num_passed:
                self._pass(sequence, table, first)

    def give_up_turns(self, sequence: LiveSequence) -> None:
        """It needs no more blocks, so that others may hold those that it has."""
        for table in sequence.tables:
            if table.turnover is not None:
                self._name(sequence, table, table.turning(sequence.num_computed))

    def find_run(self, names: Sequence[bytes], group: int) -> list[tuple[int, bool]]:
        """Blocks of the longest run that somebody has computed; which of them have their names already."""
        found: list[tuple[int, bool]] = []
        for name in names:
            named = self._blocks.find(name, group)
            block = self._unnamed.get((name, group)) if named is None else named
            if block is None:
                break
            found.append((block, named is not None))
        return found

    def check(self, sequences: Iterable[LiveSequence]) -> None:
        """Raise InternalError unless all that wait for their names are held."""
        turning = (table for sequence in sequences for table in sequence.tables if table.turnover is not None)
        if not {block for table in turning for block in table.blocks}.issuperset(self._unnamed.values()):
            raise InternalError("a block that nobody holds waits for its name")

    def _name(self, sequence: LiveSequence, table: BlockTable, indices: Iterable[int]) -> None:
        """Name its full blocks, as far as it knows their names."""
        names, group = sequence.chain.hashes, table.group
        for index in indices:
            own = table.blocks[index]
            if index >= len(names) or own == NO_BLOCK:
                continue
            if self._unnamed and self._unnamed.get((names[index], group)) == own:
                del self._unnamed[names[index], group]
            owner = self._blocks.commit(own, names[index], group)
            if owner == own:
                continue
            if not sequence.pinned:
                table.blocks[index] = owner
                self._blocks.free([own])
            elif table.window.tokens:
                self._blocks.free([owner])
            else:
                table.anchors.append(owner)

    def _announce(self, sequence: LiveSequence, table: BlockTable, indices: Iterable[int]) -> None:
        """Announce named blocks; those named later may be copied by whoever comes to them next."""
        names = sequence.chain.hashes
        for index in indices:
            if index < len(names):
                self._unnamed.setdefault((names[index], table.group), table.blocks[index])

    def _pass(self, sequence: LiveSequence, table: BlockTable, first: int) -> None:
        """Give back the blocks before `first`, the earliest to be evicted first, and take as many for a
        prompt that waits for them."""
        turnover = table.turnover
        if turnover is not None:
            turning = table.turning(sequence.num_computed)
            self._name(sequence, table, (index for index in turning if index < first))
        passed = table.blocks[table.num_passed : first]
        for block in passed:
            self._blocks.free([block])
        table.blocks[table.num_passed : first] = [NO_BLOCK] * len(passed)
        table.num_passed = first
        if turnover is None:
            return
        given = max(turnover.first, first) + self._allocation.most_turning(table.window)
        given = min(turnover.end, given)
        table.blocks[turnover.given : given] = self._blocks.allocate(given - turnover.given, sequence.share)
        turnover.given = given
        if given == turnover.end:  # it needs no more, so that others may hold them too
            self._name(sequence, table, table.turning(sequence.num_computed))
            table.turnover = None
