"""Sets of vocabulary ids with a bit for each: 16 KB for 128 k ids, and quick to join and to count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

IdBits = NDArray[np.uint8]
"""Id i is bit i % 8 of byte i // 8; whole pairs of bytes, in which no bit beyond the vocabulary is set."""


def bits_of(ids: Sequence[int], vocab_size: int) -> IdBits:
    chosen = np.zeros(vocab_size, dtype=np.bool_)
    chosen[list(ids)] = True
    return from_bytes(np.packbits(chosen, bitorder="little").tobytes(), vocab_size)


def from_bytes(packed: bytes, vocab_size: int) -> IdBits:
    """`packed` may be shorter (its last ids are not in the set), or longer: those are left out."""
    bits = np.zeros(2 * -(-vocab_size // 16), dtype=np.uint8)
    taken = np.frombuffer(packed, dtype=np.uint8)[: -(-vocab_size // 8)]
    bits[: len(taken)] = taken
    if vocab_size % 8:
        bits[vocab_size // 8] &= (1 << vocab_size % 8) - 1
    return bits


def without(bits: IdBits, ids: Iterable[int]) -> IdBits:
    """A copy that has none of `ids`."""
    left = bits.copy()
    for each in ids:
        left[each >> 3] &= 0xFF ^ (1 << (each & 7))
    return left


def with_id(bits: IdBits, token_id: int) -> IdBits:
    """A copy that has `token_id` too."""
    joined = bits.copy()
    joined[token_id >> 3] |= 1 << (token_id & 7)
    return joined


def has_id(bits: IdBits, token_id: int) -> bool:
    return bool(bits[token_id >> 3] >> (token_id & 7) & 1)


def is_within(bits: IdBits, ids: Sequence[int]) -> bool:
    """Return whether it has some of `ids`, and no other."""
    return bool(bits.any()) and not without(bits, ids).any()


def unpacked(bits: IdBits, vocab_size: int) -> NDArray[np.bool_]:
    """Return for each id whether it is in the set."""
    return np.unpackbits(bits, count=vocab_size, bitorder="little").view(np.bool_)
