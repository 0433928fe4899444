"""Count the blocks that 16 tokens of a sequence take: one in each group of layers, or none behind its
window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.window import NO_WINDOW, KvWindow


@dataclass(frozen=True, slots=True)
class KvGroups:
    """Groups of layers of a model: `full_attention` groups see everything, `windowed` ones the last
    `window_tokens` alone. A block holds KV of 16 tokens in the layers of one group; all are of one size."""

    full_attention: int = 1
    windowed: int = 0
    window_tokens: int = 0

    @property
    def window(self) -> KvWindow:
        return KvWindow(self.window_tokens)

    @property
    def count(self) -> int:
        return self.full_attention + self.windowed

    def most_blocks(self, num_tokens: int, num_rows: int) -> int:
        """Return the number of blocks that a sequence of `num_tokens` never exceeds, computed by `num_rows`
        at a time."""
        blocks = -(-num_tokens // HASH_BLOCK_TOKENS)
        in_window = min(blocks, self.window.most_blocks(num_rows)) if self.windowed else 0
        return self.full_attention * blocks + self.windowed * in_window

    def read_blocks(self, count: int, position: int) -> int:
        """Count the blocks, of the first `count` of each group, that rows from `position` on read."""
        return self.full_attention * count + self.windowed * max(0, count - self.window.first_block(position))

    def reusable_blocks(self, hashes: Sequence[bytes], is_cached: Callable[[bytes], bool]) -> int:
        """Count the first blocks that need no computing, where `is_cached` knows hashes that are told: the
        longest prefix whose blocks are there in the groups that see everything, and those of the window at
        its end in the others."""
        count = NO_WINDOW.reusable_blocks(hashes, is_cached) if self.full_attention else len(hashes)
        if not self.windowed:
            return count
        return self.window.reusable_blocks(
            hashes[:count], lambda block_hash: is_cached(self.windowed_hash(block_hash))
        )

    def windowed_hash(self, block_hash: bytes) -> bytes:
        """Name a block of the groups with a window as it is called outside of the engine. Where there are
        others, which come and go without it, these have the block_hash."""
        return bytes((block_hash[0] ^ 0xFF,)) + block_hash[1:] if self.full_attention else block_hash


ONE_GROUP = KvGroups()
