"""Choose how many KV blocks a sequence is given room for: what it holds and what it comes to next.

Not all that it may grow to: most answers end long before max_tokens. Where too many go on, the engine lets
the sequence with the latest deadline give way for a while.
"""

from __future__ import annotations

from shared.blocks.layer_groups import ONE_GROUP, KvGroups

LOOK_AHEAD_TOKENS = 128
"""Measured with answers that use a quarter or half of max_tokens: half as many again are held at once as with
room for all of it, and none gives way; with 64 some do."""


def blocks_ahead(
    num_tokens: int, tokens_left: int, groups: KvGroups = ONE_GROUP, *, num_rows: int = 1
) -> int:
    """Count the blocks for a sequence of `num_tokens` that may get `tokens_left` more, by `num_rows` of them
    in a step at most; blocks behind the window of `groups` come back as it goes on."""
    return groups.most_blocks(num_tokens + min(tokens_left, LOOK_AHEAD_TOKENS), num_rows)
