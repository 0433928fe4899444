"""Keep what an index has of its documents beside their passages: read from mapped files one by one."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgpack
import numpy as np
import numpy.typing as npt

from shared.retrieval.index.byte_strings import ByteStrings


@dataclass(frozen=True, slots=True)
class FileRecord:
    """`key` names its content and how it was read. `page_starts`: the characters at which its pages begin,
    where it has pages. `metadata` is what searches may be narrowed by. Its passages are rows `first_row` and
    on."""

    name: str
    key: str
    first_row: int
    page_starts: tuple[int, ...]
    metadata: tuple[tuple[str, str], ...]

    def page_at(self, character: int) -> int:
        """Return the page, from 1 on; 0 where the document has no pages."""
        return bisect_right(self.page_starts, character)


def packed_record(
    name: str, key: str, page_starts: Sequence[int], metadata: Sequence[tuple[str, str]]
) -> bytes:
    """Pack a record as it is kept."""
    packed: bytes = msgpack.packb((name, key, page_starts, metadata), unicode_errors="surrogatepass")
    return packed


class FileRecords:
    def __init__(self, packed: ByteStrings, first_rows: npt.NDArray[np.int64]) -> None:
        """`packed` by `packed_record`; `first_rows` [documents]."""
        self.packed = packed
        self.first_rows = first_rows

    def __len__(self) -> int:
        return len(self.first_rows)

    def __getitem__(self, number: int) -> FileRecord:
        if not 0 <= number < len(self):
            raise IndexError(f"there is no document {number}")
        name, key, page_starts, metadata = msgpack.unpackb(
            self.packed[number], unicode_errors="surrogatepass", use_list=False
        )
        return FileRecord(name, key, int(self.first_rows[number]), page_starts, metadata)

    def __iter__(self) -> Iterator[FileRecord]:
        return map(self.__getitem__, range(len(self)))

    def digest(self) -> str:
        """Digest everything but the rows."""
        told = hashlib.sha256(self.packed.ends.tobytes())
        told.update(self.packed.data.tobytes())
        return told.hexdigest()
