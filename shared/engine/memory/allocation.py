"""Choose which blocks a sequence is given: found in the prefix cache, or new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.window import KvWindow
from shared.engine.block_table import NO_BLOCK, BlockTable, Turnover, in_order
from shared.engine.memory.block_pool import BlockPool
from shared.engine.sequence import LiveSequence, blocks_for
from shared.errors import Overloaded
from shared.fairness.share import TenantShare

RETRY_AFTER_MS = 100


class Share(NamedTuple):
    """The blocks that a sequence gets in one group: `cached` ones, NO_BLOCK up to some place, `num_next` new
    ones behind them, and `num_last` new ones behind a gap."""

    cached: list[int]
    num_next: int
    gap: int = 0
    num_last: int = 0

    @property
    def num_held(self) -> int:
        return self.num_new + len(self.cached) - self.cached.count(NO_BLOCK)

    @property
    def num_new(self) -> int:
        return self.num_next + self.num_last


class Allocation:
    """`windows` are those of the groups of layers; no step has more than `max_rows` rows."""

    def __init__(self, blocks: BlockPool, windows: Sequence[KvWindow], max_rows: int) -> None:
        self._blocks = blocks
        self._max_rows = max_rows
        self._windows = windows
        self._whole = [group for group, window in enumerate(windows) if not window.tokens]
        self._windowed = [group for group, window in enumerate(windows) if window.tokens]
        self.is_whole = len(windows) == 1 and not self._windowed
        """Whether there is one group of layers, without a window, as in most models."""

    def most_turning(self, window: KvWindow) -> int:
        """Return how many blocks of a group a sequence needs on its way, whatever its length. Of a window."""
        return window.most_blocks(self._max_rows)

    def allocate_blocks(self, sequence: LiveSequence, num_tokens: int, max_cached: int) -> int:
        """Give `sequence` blocks for `num_tokens`, with a window those that it comes to first; the first, at
        most `max_cached` in each group, come filled from the prefix cache.

        Returns how many of a group do. Raises Overloaded, changing nothing, when too few are free.
        """
        found = self.reusable(sequence.chain.hashes[:max_cached])
        if not sequence.pinned:
            self.hold(sequence, self._shares(found, len(found[0]) * HASH_BLOCK_TOKENS, num_tokens))
            return len(found[0])
        shares = self._promised_shares(found, num_tokens)
        if sum(share.num_held for share in shares) > self._blocks.num_blocks:  # it would wait for ever
            found = [[] for _ in found]
            shares = self._promised_shares(found, num_tokens)
        self.hold(sequence, shares)
        count = len(found[0])
        for table, share in zip(sequence.tables, shares, strict=True):
            promised = table.window.first_block(num_tokens)
            table.turnover = Turnover(count, count + share.num_next, promised) if share.gap else None
            table.first_promised = promised if sequence.on_layer is not None else None
        return count

    def _shares(self, found: Sequence[list[int]], start: int, num_tokens: int) -> list[Share]:
        """Return the shares of a sequence of `num_tokens` that goes on from `start`."""
        return [
            Share(cached, blocks_for(self.reach(window, start, num_tokens)) - len(cached))
            for window, cached in zip(self._windows, found, strict=True)
        ]

    def _promised_shares(self, found: Sequence[list[int]], num_tokens: int) -> list[Share]:
        """Return the shares behind what was found: blocks that are given now, those before the promised ones
        that are given as others come back, and the promised ones."""
        shares = []
        for window, cached in zip(self._windows, found, strict=True):
            before = max(0, window.first_block(num_tokens) - len(cached))
            turning = min(before, self.most_turning(window))
            last = blocks_for(num_tokens) - len(cached) - before
            shares.append(Share(cached, turning, before - turning, last))
        return shares

    def reserve_blocks(self, sequence: LiveSequence, num_tokens: int, spare_tokens: int = 0) -> int:
        """Give `sequence` blocks for the KV of `num_tokens` that rows behind it read, which arrives from
        outside, and for `spare_tokens` that may follow.

        Returns how many of the first group come filled from the prefix cache. Raises Overloaded as
        `allocate_blocks` does.
        """
        shares = []
        for group, window in enumerate(self._windows):
            first = window.first_block(num_tokens)
            cached = [NO_BLOCK] * first + self._blocks.match(sequence.chain.hashes[first:], group)
            shares.append(Share(cached, blocks_for(num_tokens + spare_tokens) - len(cached)))
        self.hold(sequence, shares)
        return len(shares[0].cached) - self._windows[0].first_block(num_tokens)

    def hold(self, sequence: LiveSequence, shares: Sequence[Share]) -> None:
        """Hold all of it, or, raising Overloaded, nothing."""
        held = list(in_order([share.cached for share in shares]))
        self._blocks.retain(held, sequence.share)
        missing = sum(share.num_new for share in shares)
        if missing > self._blocks.num_free:
            self._blocks.free(held)
            raise Overloaded(
                f"{missing} KV blocks are needed and {self._blocks.num_free} are free; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        sequence.tables = [
            self._table(group, window, share, sequence.share)
            for group, (window, share) in enumerate(zip(self._windows, shares, strict=True))
        ]
        sequence.num_computed = max(len(share.cached) for share in shares) * HASH_BLOCK_TOKENS

    def _table(self, group: int, window: KvWindow, share: Share, tenant: TenantShare) -> BlockTable:
        new = self._blocks.allocate(share.num_new, tenant)
        gap = [NO_BLOCK] * share.gap
        return BlockTable(
            group,
            window,
            [*share.cached, *new[: share.num_next], *gap, *new[share.num_next :]],
            num_passed=share.cached.count(NO_BLOCK),
            num_committed=len(share.cached),
        )

    def reusable(self, names: Sequence[bytes]) -> list[list[int]]:
        """Return what the prefix cache has of the first blocks, as far as that can be gone on behind: as
        many in
        each group, NO_BLOCK for those before the window at its end."""
        found = {group: self._blocks.match(names, group) for group in self._whole}
        count = min(map(len, found.values()), default=len(names))
        if self._windowed:
            window = self._windows[self._windowed[0]]
            count = window.reusable_blocks(names[:count], self._has_windowed)
            first = window.first_block(count * HASH_BLOCK_TOKENS)
            for group in self._windowed:
                found[group] = [NO_BLOCK] * first + self._blocks.match(names[first:count], group)
        return [found[group][:count] for group in range(len(self._windows))]

    def _has_windowed(self, name: bytes) -> bool:
        return all(self._blocks.find(name, group) is not None for group in self._windowed)

    def reach(self, window: KvWindow, start: int, num_tokens: int) -> int:
        """Return up to which of `num_tokens` a sequence that goes on from `start` needs blocks."""
        return min(num_tokens, start + self._max_rows) if window.tokens else num_tokens

    def resume(self, sequence: LiveSequence, found: Sequence[list[int]], num_computed: int) -> None:
        """Blocks to go on behind `num_computed` tokens, of which `found` is what the prefix cache has."""
        self.hold(
            sequence, self._shares(self._read_part(found, num_computed), num_computed, len(sequence.tokens))
        )

    def fits(self, sequence: LiveSequence, found: Sequence[list[int]], num_computed: int) -> bool:
        """Return whether `resume` would find room."""
        found = self._read_part(found, num_computed)
        shares = self._shares(found, num_computed, len(sequence.tokens))
        free = self._blocks.num_free - self._blocks.num_unheld(in_order(found))
        return sum(share.num_new for share in shares) <= free

    def _read_part(self, found: Sequence[list[int]], num_computed: int) -> list[list[int]]:
        """Return the part that rows behind `num_computed` tokens read."""
        firsts = [window.first_block(num_computed) for window in self._windows]
        return [[NO_BLOCK] * first + cached[first:] for first, cached in zip(firsts, found, strict=True)]
