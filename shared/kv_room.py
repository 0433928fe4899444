"""How many KV blocks a sequence is given room for: what it holds and what it comes to next.

Not all that it may grow to: most answers end long before max_tokens. Where too many go on, the engine lets
the sequence with the latest deadline give way for a while.
"""

from __future__ import annotations

from shared.kv_hash import HASH_BLOCK_TOKENS
from shared.kv_window import NO_WINDOW, KvWindow

LOOK_AHEAD_TOKENS = 128
"""Measured with answers that use a quarter or half of max_tokens: half as many again are held at once as with
room for all of it, and none gives way; with 64 some do."""


def blocks_ahead(
    num_tokens: int, tokens_left: int, window: KvWindow = NO_WINDOW, *, num_rows: int = 1
) -> int:
    """For a sequence of `num_tokens` that may get `tokens_left` more, by `num_rows` of them in a step at
    most; where every layer has a `window`, blocks behind it come back as it goes on."""
    blocks = -(-(num_tokens + min(tokens_left, LOOK_AHEAD_TOKENS)) // HASH_BLOCK_TOKENS)
    return min(blocks, window.most_blocks(num_rows)) if window.tokens else blocks
