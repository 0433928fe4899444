"""Lists of ids and of block hashes as bytes: a prompt is long, and a list of boxed integers is slow."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from shared.blocks.block_hash import HASH_BLOCK_TOKENS, HASH_BYTES
from shared.errors import ProtocolError

MAX_PROMPT_TOKENS = 1 << 20
"""Longest id list a message may carry (4 MB); the model's own limit is far below."""

MAX_HASHES = MAX_PROMPT_TOKENS // HASH_BLOCK_TOKENS
"""Most block hashes in one field of a message (1 MB): one for each block of the longest id list."""

MAX_DIMENSIONS = 1 << 16
"""Longest vector that a message may carry; those of the embedder that ships have 384."""

FLOAT_BYTES = 4

ID_BYTES = 4
"""The bytes of one id in what `pack_ids` makes."""


def pack_ids(token_ids: Iterable[int]) -> bytes:
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    _check_length(data, ID_BYTES, MAX_PROMPT_TOKENS, "integers")
    unpacked = array("I", data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


def unpack_vector(data: bytes) -> array[float]:
    """Return the numbers of a vector: float32, little-endian."""
    _check_length(data, FLOAT_BYTES, MAX_DIMENSIONS, "floats")
    unpacked = array("f", data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked


def pack_hashes(hashes: Iterable[bytes]) -> bytes:
    """Raises ProtocolError for one of another length than HASH_BYTES: it would shift all that follow."""
    hashes = list(hashes)
    if not all(len(block_hash) == HASH_BYTES for block_hash in hashes):
        raise ProtocolError(f"a block hash is not of {HASH_BYTES} bytes")
    return b"".join(hashes)


def unpack_hashes(data: bytes) -> list[bytes]:
    _check_length(data, HASH_BYTES, MAX_HASHES, "block hashes")
    return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]


def _check_length(data: bytes, item_bytes: int, most: int, what: str) -> None:
    if len(data) % item_bytes or len(data) > most * item_bytes:
        raise ProtocolError(f"{len(data)} bytes are not a list of at most {most} {item_bytes}-byte {what}")
