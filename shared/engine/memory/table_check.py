"""Check that a sequence's tables of blocks are what its tokens and its status explain."""

from __future__ import annotations

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.block_table import NO_BLOCK, BlockTable
from shared.engine.sequence import LiveSequence, SequenceStatus
from shared.errors import InternalError


def check_tables(sequence: LiveSequence) -> None:
    """Raise InternalError, which says what is wrong."""
    if (sequence.status is SequenceStatus.PREEMPTED) != (not sequence.tables):
        raise InternalError(f"{sequence.key!r} is {sequence.status.value} with {len(sequence.tables)} tables")
    if sequence.status is SequenceStatus.ACTIVE and sequence.num_uncomputed < 1:
        raise InternalError(f"{sequence.key!r} is active with nothing to compute")
    for table in sequence.tables:
        _check_table(sequence, table)


def _check_table(sequence: LiveSequence, table: BlockTable) -> None:
    if not table.blocks and sequence.status is not SequenceStatus.LENT:
        raise InternalError(f"{sequence.key!r} has no blocks in group {table.group}")
    covered = table.num_given * HASH_BLOCK_TOKENS
    if not 0 <= sequence.num_computed <= covered:
        raise InternalError(f"{sequence.key!r} computed {sequence.num_computed} of {covered} places")
    held = sum(block != NO_BLOCK for block in table.blocks)
    passed = table.blocks[: table.num_passed]
    if held != table.num_held or passed != [NO_BLOCK] * len(passed):
        raise InternalError(f"{sequence.key!r} holds {held} blocks, {table.num_held} are explained")
    computes = sequence.status not in (SequenceStatus.RESERVED, SequenceStatus.LENT)
    if computes and table.num_passed > table.window.first_block(sequence.num_computed):
        raise InternalError(f"{sequence.key!r} has given back what its window still reads")
