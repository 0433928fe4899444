"""Tell which KV of a sequence is still read: all of it, or, by layers with a window, the end of it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS

TILE_TOKENS = 64
"""Backends read the keys of a window in tiles that begin at multiples of this, and mask those before it: what
they read must be the sequence's own. So blocks are given back a tile at a time."""
TILE_BLOCKS = TILE_TOKENS // HASH_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class KvWindow:
    """A row sees itself and the `tokens` - 1 tokens before it; 0: all before it."""

    tokens: int = 0

    def first_block(self, position: int) -> int:
        """The first block of a sequence that rows from `position` on read."""
        if not self.tokens:
            return 0
        return max(0, position - self.tokens + 1) // TILE_TOKENS * TILE_BLOCKS

    def most_blocks(self, num_rows: int) -> int:
        """Return the number of blocks that `num_rows` rows of one sequence and all they see never exceed. Of
        a window."""
        return -(-(self.tokens + TILE_TOKENS - 2 + num_rows) // HASH_BLOCK_TOKENS)

    def reusable_blocks(self, names: Sequence[bytes], is_cached: Callable[[bytes], bool]) -> int:
        """Count the first blocks that need no computing where those with `is_cached` are at hand: of the
        longest prefix that can be gone on behind, which takes all of it or the window at its end."""
        if not self.tokens:
            return next((count for count, name in enumerate(names) if not is_cached(name)), len(names))
        reusable = run = 0
        for count, name in enumerate(names, start=1):
            run = run + 1 if is_cached(name) else 0
            if count - run <= self.first_block(count * HASH_BLOCK_TOKENS):
                reusable = count
        return reusable


NO_WINDOW = KvWindow()
