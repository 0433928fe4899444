"""Names of KV blocks: any ones told by a number, and those that services without a fleet key give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.blocks.block_hash import HASH_BYTES, BlockHasher
from shared.messages import pack_hashes


def numbered_hash(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")


def numbered_hashes(numbers: Iterable[int]) -> list[bytes]:
    return [numbered_hash(number) for number in numbers]


def packed_hashes(*numbers: int) -> bytes:
    """The same, as a message has them."""
    return pack_hashes(numbered_hashes(numbers))


def hashes_of(token_ids: Sequence[int], layout: str = "", tenant: str = "", adapter: str = "") -> list[bytes]:
    hasher = BlockHasher()
    return hasher.block_hashes(token_ids, hasher.seed(layout, tenant, adapter))
