"""Count the blocks that 16 tokens of a sequence take: one in each group of layers, or none behind its
window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.window import NO_WINDOW, KvWindow


@dataclass(frozen=True, slots=True)
class KvGroups:
    """A model's layers are in `whole` groups that see everything, and in `windowed` ones that see the last
    `window_tokens` alone. A block holds KV of 16 tokens in the layers of one group; all are of one size."""

    whole: int = 1
    windowed: int = 0
    window_tokens: int = 0

    @property
    def window(self) -> KvWindow:
        return KvWindow(self.window_tokens)

    @property
    def count(self) -> int:
        return self.whole + self.windowed

    def most_blocks(self, num_tokens: int, num_rows: int) -> int:
        """Return the number of blocks that a sequence of `num_tokens` never exceeds, computed by `num_rows`
        at a time."""
        blocks = -(-num_tokens // HASH_BLOCK_TOKENS)
        in_window = min(blocks, self.window.most_blocks(num_rows)) if self.windowed else 0
        return self.whole * blocks + self.windowed * in_window

    def read_blocks(self, count: int, position: int) -> int:
        """Count the blocks, of the first `count` of each group, that rows from `position` on read."""
        return self.whole * count + self.windowed * max(0, count - self.window.first_block(position))

    def reusable_blocks(self, names: Sequence[bytes], is_cached: Callable[[bytes], bool]) -> int:
        """Count the first blocks that need no computing, where `is_cached` knows names that are told: the
        longest prefix whose blocks are there in the groups that see everything, and those of the window at
        its end in the others."""
        count = NO_WINDOW.reusable_blocks(names, is_cached) if self.whole else len(names)
        if not self.windowed:
            return count
        return self.window.reusable_blocks(names[:count], lambda name: is_cached(self.windowed_name(name)))

    def windowed_name(self, name: bytes) -> bytes:
        """Name a block of the groups with a window as it is called outside of the engine. Where there are
        others, which come and go without it, these have the name."""
        return bytes((name[0] ^ 0xFF,)) + name[1:] if self.whole else name


ONE_GROUP = KvGroups()
