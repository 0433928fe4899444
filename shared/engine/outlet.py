"""Let KV go on in another engine: that of a sequence, which is lent while it still runs and then halted, or
that of a cached prefix."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.block_table import NO_BLOCK, BlockTable
from shared.engine.intake import Intake
from shared.engine.memory.allocation import Share
from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.results import KvLoan
from shared.engine.sequence import LiveSequence, SequenceStatus, blocks_for
from shared.errors import InvalidRequest, Overloaded
from shared.fairness.share import TenantShare


class Outlet(Intake):
    """The part of an `Engine` that lets sequences leave; each call changes everything it has to, or
    nothing."""

    def lend(self, key: str, loan_key: str) -> KvLoan:
        """The full blocks that `key`, which goes on, has by now; nobody writes into them until `loan_key`,
        which holds them, is released. Called again it holds those too that were filled meanwhile.

        Raises InvalidRequest where `key` does not run here, Overloaded where its KV is not there now: it has
        lost its blocks, or is being computed again.
        """
        source = self._running(key)
        loan = self._scheduler.sequences.get(loan_key)
        full = source.num_computed // BLOCK_TOKENS
        if loan is None:
            loan = self._input_processor.loan(loan_key, source.share)
            loan.tables = [
                BlockTable(table.group, table.window, [NO_BLOCK] * table.num_passed, table.num_passed)
                for table in source.tables
            ]
            self._scheduler.hold_sequence(loan)
        fresh = _behind(loan, source, full)
        for table, blocks in zip(loan.tables, fresh, strict=True):
            self._block_manager.borrow(table, blocks, source.share)
            self.kv_pool.bring_out(blocks)
        loan.tokens = source.tokens[: full * BLOCK_TOKENS]
        loan.num_computed = len(loan.tokens)
        return _loan_of(source, loan, full)

    def halt(self, key: str, loan_key: str, base: int) -> KvLoan:
        """Stop `key` where it is: its KV up to its last token but one is final, and it keeps its blocks
        until it is released. Returns all of that, of which `loan_key` has the first part, and its tokens
        from `base` on.

        Raises as `lend` does; it runs on then.
        """
        source = self._running(key)
        loan = self._scheduler.sequences.get(loan_key)
        if loan is None or loan.status is not SequenceStatus.LENT:
            raise InvalidRequest(f"nothing of {key!r} is lent as {loan_key!r}; lend before halting")
        end = blocks_for(source.num_computed)
        rest = _behind(loan, source, end)
        self._sampler.drop_postponed([key])
        source.status = SequenceStatus.HELD
        source.drafts = ()
        for blocks in rest:
            self.kv_pool.bring_out(blocks)
        return _loan_of(source, loan, end, tuple(source.tokens[base:]))

    def lend_prefix(self, loan_key: str, block_hashes: Sequence[bytes], share: TenantShare) -> KvLoan:
        """The blocks of a prefix that the prefix cache has, by their names; they stay what they are until
        `loan_key`, which holds them for `share`, is released.

        Raises InvalidRequest where that is held already, Overloaded where some of them are not here.
        """
        self._scheduler.check_room(loan_key, share=share)
        found = self._allocation.reusable(block_hashes)
        if len(found[0]) < len(block_hashes) or not block_hashes:
            raise Overloaded(
                f"{len(found[0])} of {len(block_hashes)} blocks of the prefix are cached here; compute them"
            )
        loan = self._input_processor.loan(loan_key, share)
        self._allocation.hold(loan, [Share(cached, 0) for cached in found])
        loan.tokens = [0] * loan.num_computed  # nobody reads them
        self._scheduler.hold_sequence(loan)
        for table in loan.tables:
            self.kv_pool.bring_out(table.blocks[table.num_passed :])
        return _loan_of(loan, loan, len(block_hashes))

    def _running(self, key: str) -> LiveSequence:
        sequence = self._scheduler.sequences.get(key)
        if sequence is None or sequence.pinned or sequence.status is SequenceStatus.RESERVED:
            raise InvalidRequest(f"sequence {key!r} is not running here; move one that is")
        decodes = not sequence.prefilling and sequence.num_uncomputed == 1
        if sequence.status is not SequenceStatus.ACTIVE or not decodes:
            raise Overloaded(f"KV of {key!r} is not complete here now; try again when it decodes")
        return sequence


def _behind(loan: LiveSequence, source: LiveSequence, end: int) -> list[list[int]]:
    """The blocks of `source`, by group, behind those that are lent. Raises Overloaded where one is given
    back."""
    found = [
        theirs.blocks[len(lent.blocks) : end] for lent, theirs in zip(loan.tables, source.tables, strict=True)
    ]
    if any(NO_BLOCK in blocks for blocks in found):
        raise Overloaded(f"KV of {source.key!r} has left its window before it was lent; lend it sooner")
    return found


def _loan_of(source: LiveSequence, loan: LiveSequence, end: int, token_ids: tuple[int, ...] = ()) -> KvLoan:
    """The blocks that are lent, and those behind them of the sequence itself."""
    tables = tuple(
        (*lent.blocks, *theirs.blocks[len(lent.blocks) : end])
        for lent, theirs in zip(loan.tables, source.tables, strict=True)
    )
    first_blocks = tuple(table.num_passed for table in loan.tables)
    return KvLoan(len(source.tokens), token_ids, tables, first_blocks, end)
