"""The bytes of a GGUF header, taken one after another; nothing is made by a number that a file claims."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from shared.errors import InvalidRequest

MAX_HEADER_BYTES = 256 << 20
"""The largest vocabularies in use need about 15 MB."""
MAX_STRING_BYTES = 4 << 20
"""The longest text in the metadata."""
_READ_BYTES = 1 << 20


class HeaderBytes:
    """Reads `file` as far as it is asked for. Methods raise InvalidRequest where that ends too early."""

    def __init__(self, path: Path, file: BinaryIO, file_bytes: int) -> None:
        self.path = path
        self.at = 0
        """The bytes that have been taken."""
        self.data = bytearray()
        self._file = file
        self._file_bytes = file_bytes

    def skip(self, count: int, what: str) -> None:
        end = self.at + count
        if end > len(self.data):
            self._fetch(end, what)
        self.at = end

    def number(self, layout: struct.Struct, what: str) -> int:
        self.skip(layout.size, what)
        (value,) = layout.unpack_from(self.data, self.at - layout.size)
        return int(value)

    def skip_strings(self, count: int, what: str) -> None:
        """A loop of its own: a vocabulary has some 100,000 of them."""
        at, lengths = self.at, U64.unpack_from
        for _ in range(count):
            if at + U64.size > len(self.data):
                self._fetch(at + U64.size, what)
            (length,) = lengths(self.data, at)
            self._check_length(length, what, MAX_STRING_BYTES)
            at += U64.size + length
        self.skip(at - self.at, what)

    def string(self, what: str, at_most: int = MAX_STRING_BYTES) -> str:
        length = self.number(U64, what)
        self._check_length(length, what, at_most)
        self.skip(length, what)
        try:
            return self.data[self.at - length : self.at].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is no valid UTF-8") from error

    def damaged(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self.path.name} is damaged: {why}; download the file again")

    def _check_length(self, length: int, what: str, at_most: int) -> None:
        if length > at_most:
            raise self.damaged(
                f"{what} is said to be {length} bytes long, more than the {at_most} that it may be"
            )

    def _fetch(self, end: int, what: str) -> None:
        if end > self._file_bytes:
            raise self.damaged(f"it ends after {self._file_bytes} bytes, in the middle of {what}")
        if end > MAX_HEADER_BYTES:
            raise self.damaged(f"its header takes more than {MAX_HEADER_BYTES} bytes")
        while len(self.data) < end:
            piece = self._file.read(max(_READ_BYTES, end - len(self.data)))
            if not piece:
                raise self.damaged(f"it became shorter while it was read, in the middle of {what}")
            self.data += piece


U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
