"""Which blocks a sequence is given: found in the prefix cache, or new ones."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.memory.block_pool import BlockPool
from shared.engine.sequence import NO_BLOCK, LiveSequence, Turnover, blocks_for
from shared.errors import Overloaded
from shared.kv_hash import HASH_BLOCK_TOKENS
from shared.kv_window import KvWindow

RETRY_AFTER_MS = 100


class Allotment:
    """All layers have `window`, or some have none; no step has more than `max_rows` rows."""

    def __init__(self, blocks: BlockPool, window: KvWindow, max_rows: int) -> None:
        self._blocks = blocks
        self._max_rows = max_rows
        self.window = window

    @property
    def most_turning(self) -> int:
        """How many blocks a sequence needs on its way, whatever its length. Of a window."""
        return self.window.most_blocks(self._max_rows)

    def allocate_blocks(self, sequence: LiveSequence, num_tokens: int, max_cached: int) -> int:
        """Give `sequence` blocks for `num_tokens`, with a window those that it comes to first; the first,
        at most `max_cached` of them, come filled from the prefix cache.

        Returns how many of them do. Raises Overloaded, changing nothing, when too few are free.
        """
        cached = self.reusable(sequence.chain.hashes[:max_cached])
        count = len(cached)
        if not sequence.pinned:
            end = blocks_for(self.reach(count * HASH_BLOCK_TOKENS, num_tokens))
            self.hold(sequence, cached, end - count)
            return count
        promised = self.window.first_block(num_tokens)
        turning, gap, last = self._turning_gap_last(count, promised, num_tokens)
        if turning + last + _num_held(cached) > self._blocks.num_blocks:  # it would wait for ever
            cached, count = [], 0
            turning, gap, last = self._turning_gap_last(count, promised, num_tokens)
        self.hold(sequence, cached, turning, gap, last)
        sequence.turnover = Turnover(count, count + turning, promised) if gap else None
        sequence.first_promised = promised if sequence.on_layer is not None else None
        return count

    def _turning_gap_last(self, count: int, promised: int, num_tokens: int) -> tuple[int, int, int]:
        """Behind the first `count`: blocks that are given now, those before `promised` that are given as
        others come back, and those from there on."""
        before = max(0, promised - count)
        turning = min(before, self.most_turning)
        return turning, before - turning, blocks_for(num_tokens) - count - before

    def reserve_blocks(self, sequence: LiveSequence, num_tokens: int) -> int:
        """Give `sequence` blocks for the KV of `num_tokens` that rows behind it read, which arrives from
        outside.

        Returns how many come filled from the prefix cache. Raises Overloaded as `allocate_blocks` does.
        """
        first = self.window.first_block(num_tokens)
        found = self._blocks.match(sequence.chain.hashes[first:])
        self.hold(sequence, [NO_BLOCK] * first + found, blocks_for(num_tokens) - first - len(found))
        return len(found)

    def hold(
        self, sequence: LiveSequence, cached: list[int], num_next: int, gap: int = 0, num_last: int = 0
    ) -> None:
        """`cached`, NO_BLOCK up to some place, new blocks behind it, and new ones behind a gap."""
        held = cached[len(cached) - _num_held(cached) :]
        self._blocks.retain(held)
        missing = num_next + num_last
        if missing > self._blocks.num_free:
            self._blocks.free(held)
            raise Overloaded(
                f"{missing} KV blocks are needed and {self._blocks.num_free} are free; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        new = self._blocks.allocate(missing)
        sequence.blocks = [*cached, *new[:num_next], *[NO_BLOCK] * gap, *new[num_next:]]
        sequence.num_passed = len(cached) - len(held)
        sequence.num_computed = len(cached) * HASH_BLOCK_TOKENS
        sequence.num_committed_blocks = len(cached)

    def reusable(self, names: Sequence[bytes]) -> list[int]:
        """What the prefix cache has of the first blocks, as far as that can be gone on behind; NO_BLOCK for
        those before the window at its end."""
        if not self.window.tokens:
            return self._blocks.match(names)
        count = self.window.reusable_blocks(names, self._blocks.has)
        first = self.window.first_block(count * HASH_BLOCK_TOKENS)
        return [NO_BLOCK] * first + self._blocks.match(names[first:count])

    def reach(self, start: int, num_tokens: int) -> int:
        """Up to which of `num_tokens` there must be blocks for a sequence that goes on from `start`."""
        return min(num_tokens, start + self._max_rows) if self.window.tokens else num_tokens

    def fits(self, sequence: LiveSequence, cached: list[int], num_computed: int) -> bool:
        first = self.window.first_block(num_computed)
        found = [block for block in cached[first:] if block != NO_BLOCK]
        free = self._blocks.num_free - self._blocks.num_unheld(found)
        return blocks_for(self.reach(num_computed, len(sequence.tokens))) - first - len(found) <= free


def _num_held(cached: list[int]) -> int:
    return len(cached) - cached.count(NO_BLOCK)
