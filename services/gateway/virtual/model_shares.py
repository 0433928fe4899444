"""Divide requests among models by share, so that a key keeps to one of them. Pure.

Weighted rendezvous hashing: each model has a draw of its own for a key, and the best draw by share wins. A
key changes its model only where the shares of those two have changed, so that a canary that grows from 5 to
10 % takes 5 % more of the keys and moves nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from shared.files.virtual_model import ModelShare

DRAW_BYTES = 8


def pick_share(shares: Sequence[ModelShare], virtual_name: str, key: str) -> ModelShare:
    """Return the share that `key` belongs to; one share at least is above 0."""
    if len(shares) == 1:
        return shares[0]
    return max(shares, key=lambda each: _score(each, virtual_name, key))


def part_of(share: ModelShare, shares: Sequence[ModelShare]) -> float:
    """Return which part of all keys, from 0 to 1, belongs to `share`."""
    return share.share / sum(each.share for each in shares)


def _score(share: ModelShare, virtual_name: str, key: str) -> float:
    drawn = f"{virtual_name}\0{share.model}\0{key}".encode(errors="surrogatepass")
    number = int.from_bytes(blake2b(drawn, digest_size=DRAW_BYTES).digest(), "little")
    uniform = (number + 0.5) / 2.0 ** (8 * DRAW_BYTES)
    return -share.share / math.log(uniform) if uniform < 1.0 else math.inf
