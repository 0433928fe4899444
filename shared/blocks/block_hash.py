"""Names of KV blocks: a chain of keyed hashes, so that a name covers everything before the block too.

    name[i] = BLAKE2b(key of the fleet, name[i - 1] ‖ the block's ids as little-endian u32), 128 bits

It starts from a seed that covers what else the KV depends on: the layout of the workers, whose fingerprint
stands for weights, configuration, rotation and storage, the adapter over these weights, and the tenant. Two
sequences share a block's name exactly when they share all of that and every token up to the end of that
block. Without the key nobody can look for two blocks of one name.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from shared.errors import InvalidRequest

HASH_BLOCK_TOKENS = 16
HASH_BYTES = 16
FLEET_KEY_BYTES = 32
DEVELOPMENT_KEY = b"penstock: a key everybody knows.".ljust(FLEET_KEY_BYTES)
"""The key of a fleet that was given none: everybody who has read this line can forge its hashes."""

_ID_BYTES = 4
_BLOCK_BYTES = HASH_BLOCK_TOKENS * _ID_BYTES
# No kind of input can be taken for another.
_SEED, _ADAPTER_SEED, _BLOCK = b"penstock seed", b"penstock adapter", b"penstock block"


def fleet_key_bytes(fleet_key: str) -> bytes:
    """`fleet_key` as the configuration has it: hex digits, "" for none."""
    return bytes.fromhex(fleet_key) or DEVELOPMENT_KEY


class BlockHasher:
    """Names blocks with one key. May be used from several threads at once."""

    def __init__(self, fleet_key: bytes = DEVELOPMENT_KEY) -> None:
        self._of_seeds = blake2b(digest_size=HASH_BYTES, key=fleet_key, person=_SEED)
        self._of_adapter_seeds = blake2b(digest_size=HASH_BYTES, key=fleet_key, person=_ADAPTER_SEED)
        self._of_blocks = blake2b(digest_size=HASH_BYTES, key=fleet_key, person=_BLOCK)

    @classmethod
    def of(cls, fleet_key: str) -> BlockHasher:
        """`fleet_key` as the configuration has it: hex digits, "" for none."""
        return cls(fleet_key_bytes(fleet_key))

    def seed(self, layout: str, tenant: str = "", adapter: str = "") -> bytes:
        """The chain's first link, for KV of `layout` (a worker's fingerprint) that `tenant` alone may use.

        `adapter` is the digest of the one that it was computed with, "" for the model alone.
        """
        hasher = (self._of_adapter_seeds if adapter else self._of_seeds).copy()
        for stated in (layout, adapter) if adapter else (layout,):
            text = stated.encode()
            hasher.update(len(text).to_bytes(8, "little") + text)
        hasher.update(tenant.encode())
        return hasher.digest()

    def block_hashes(self, token_ids: Sequence[int], seed: bytes) -> list[bytes]:
        """The names of all full 16-token blocks of `token_ids`; a tail of fewer tokens has none."""
        names: list[bytes] = []
        self.extend(names, token_ids, len(token_ids) // HASH_BLOCK_TOKENS, seed)
        return names

    def extend(self, names: list[bytes], token_ids: Sequence[int], num_blocks: int, seed: bytes) -> None:
        """Continue `names`, those of the first blocks of `token_ids`, until `num_blocks` have one.

        Names that are there stay. Raises InvalidRequest for ids that are not u32.
        """
        start = len(names) * HASH_BLOCK_TOKENS
        packed = _u32_bytes(token_ids[start : num_blocks * HASH_BLOCK_TOKENS])
        previous = names[-1] if names else seed
        new_hasher = self._of_blocks.copy  # the key is in it already: half of the work of a short input
        for offset in range(0, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            hasher = new_hasher()
            hasher.update(previous + packed[offset : offset + _BLOCK_BYTES])
            previous = hasher.digest()
            names.append(previous)


def max_cached_blocks(num_tokens: int) -> int:
    """Count the blocks of a sequence of `num_tokens` that may come from the prefix cache.

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
