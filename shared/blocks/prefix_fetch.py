"""Decide whether the beginning of a prompt is fetched from a worker that has it, or computed. Pure.

A worker goes by it that was given such a prompt, and before that the gateway, which chooses the worker.
"""

from __future__ import annotations

import math

from shared.blocks.block_hash import HASH_BLOCK_TOKENS

LEAST_BLOCKS = 4
"""The fewest blocks that are worth asking for."""
MARGIN = 2.0
"""A prefix is fetched where computing it is predicted to take so many times as long at least."""
MAX_FETCH_S = 2.0
"""The longest that a prompt waits for its prefix, however long that takes to compute."""


def is_worth_fetching(blocks: int, fetch_s: float, tokens_per_s: float) -> bool:
    """Return whether so many blocks are there notably sooner when they are fetched, which takes `fetch_s`,
    than when they are computed at `tokens_per_s`; never where that is no number, or nobody knows it."""
    if blocks < LEAST_BLOCKS or not 0 < tokens_per_s < math.inf or not 0 <= fetch_s <= MAX_FETCH_S:
        return False
    return MARGIN * fetch_s <= blocks * HASH_BLOCK_TOKENS / tokens_per_s
