"""Lists of ids and of block hashes as bytes: a prompt is long, and a list of boxed integers is slow."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from shared.errors import ProtocolError

MAX_PROMPT_TOKENS = 1 << 20
"""Longest id list a message may carry (4 MB); the model's own limit is far below."""

_U32 = "I"
_U64 = "Q"


def _pack(typecode: str, values: Iterable[int]) -> bytes:
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(typecode: str, data: bytes) -> list[int]:
    unpacked = array(typecode)
    if len(data) % unpacked.itemsize or len(data) > MAX_PROMPT_TOKENS * unpacked.itemsize:
        raise ProtocolError(
            f"{len(data)} bytes are not a list of {unpacked.itemsize}-byte integers within the limit"
        )
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


def pack_ids(token_ids: Iterable[int]) -> bytes:
    return _pack(_U32, token_ids)


def unpack_ids(data: bytes) -> list[int]:
    return _unpack(_U32, data)


def pack_hashes(hashes: Iterable[int]) -> bytes:
    return _pack(_U64, hashes)


def unpack_hashes(data: bytes) -> list[int]:
    return _unpack(_U64, data)
