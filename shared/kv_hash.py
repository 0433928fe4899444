"""Names of KV blocks: a chain of hashes, so that a name covers everything before the block too.

The scheme is that of the Mooncake conductor: XXH3-64 over little-endian u32 ids, then
`seq[i] = XXH3(seq[i-1] ‖ local[i])`, started from a seed made of the model id and the tenant. Two
sequences share a block's name exactly when they share the model, the tenant and every token up to
the end of that block.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import xxhash

from shared.errors import InvalidRequest

HASH_BLOCK_TOKENS = 16
_U64_MAX = 2**64 - 1


def hash_seed(model_id: str, tenant: str = "") -> int:
    """The chain's first link (u64). The zero byte keeps ("ab", "c") and ("a", "bc") apart."""
    return int(xxhash.xxh3_64_intdigest(model_id.encode() + b"\0" + tenant.encode()))


def chain_hash(previous: int, block_token_ids: Sequence[int]) -> int:
    """The name (u64) of the block of `block_token_ids` that follows the block named `previous`.

    For the first block `previous` is the seed. Raises InvalidRequest for ids that are not u32.
    """
    if not 0 <= previous <= _U64_MAX:
        raise InvalidRequest(f"block hash {previous} is not an unsigned 64-bit number; send u64 hashes")
    local = xxhash.xxh3_64_intdigest(_u32_bytes(block_token_ids))
    return int(xxhash.xxh3_64_intdigest(previous.to_bytes(8, "little") + local.to_bytes(8, "little")))


def block_hashes(token_ids: Sequence[int], seed: int) -> list[int]:
    """The names of all full 16-token blocks of `token_ids`; a tail of fewer tokens has none."""
    names: list[int] = []
    previous = seed
    for start in range(0, len(token_ids) - HASH_BLOCK_TOKENS + 1, HASH_BLOCK_TOKENS):
        previous = chain_hash(previous, token_ids[start : start + HASH_BLOCK_TOKENS])
        names.append(previous)
    return names


def max_cached_blocks(num_tokens: int) -> int:
    """How many blocks of a sequence of `num_tokens` may come from the prefix cache.

    The last token is always computed: its logits are what the next draw needs.
    """
    return (num_tokens - 1) // HASH_BLOCK_TOKENS


def _u32_bytes(token_ids: Sequence[int]) -> bytes:
    try:
        packed = array("I", token_ids)
    except (OverflowError, TypeError) as error:
        raise InvalidRequest("token ids must be integers from 0 to 2^32-1; check the tokenizer") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
