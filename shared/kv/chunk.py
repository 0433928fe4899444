"""A chunk on the wire: 48 bytes of header, then the cells of consecutive blocks of one layer.

    magic u32 | epoch u32 | transfer u64 | offset u64 | layer u32 | block u32 | blocks u32 |
    body_bytes u32 | checksum u64                                            (little-endian)

`offset` counts the bytes this transfer has put on the wire before this chunk, repetitions included: it
is what credits are counted in, so that a lost chunk cannot keep its credit for ever. The checksum is
XXH3-64 over the header before it and the body: a header that changed is as bad as a body.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from shared.errors import ChecksumMismatch, ProtocolError

MAGIC = 0x31564B50  # "PKV1"
_FIELDS = struct.Struct("<IIQQIIII")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
MAX_EPOCH = (1 << 32) - 1
"""The greatest epoch that a chunk can name."""


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    transfer: int
    epoch: int
    offset: int
    layer: int
    block: int  # of the request
    blocks: int
    body_bytes: int

    def pack(self, body: memoryview) -> bytes:
        """The header with the checksum of itself and `body`."""
        fields = self._fields()
        return fields + _CHECKSUM.pack(checksum(body, fields))

    def verify(self, body: memoryview, expected: int) -> None:
        """Raises ChecksumMismatch."""
        if checksum(body, self._fields()) != expected:
            raise ChecksumMismatch("a KV chunk changed on its way")

    def _fields(self) -> bytes:
        return _FIELDS.pack(
            MAGIC,
            self.epoch,
            self.transfer,
            self.offset,
            self.layer,
            self.block,
            self.blocks,
            self.body_bytes,
        )


def parse_header(data: bytes) -> tuple[ChunkHeader, int]:
    """The header and the checksum it claims. Raises ProtocolError when this is not a header."""
    if len(data) != HEADER_BYTES:
        raise ProtocolError(f"a KV chunk begins with {HEADER_BYTES} bytes of header, got {len(data)}")
    magic, epoch, transfer, offset, layer, block, blocks, body_bytes = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("not a KV chunk of this version: the first bytes differ")
    (claimed,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    return ChunkHeader(transfer, epoch, offset, layer, block, blocks, body_bytes), claimed


def checksum(body: memoryview, prefix: bytes = b"") -> int:
    """XXH3-64 of `prefix` and `body`."""
    digest = xxhash.xxh3_64(prefix)
    digest.update(body)
    return int(digest.intdigest())
