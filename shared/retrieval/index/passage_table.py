"""The passages of an index, in its order: read from mapped files one by one, so that a million of them need
no more memory than is looked at.

On disk: `passages.npy` (int64, a row of COLUMNS each), `texts` in UTF-8, `headings` in UTF-8, each once,
`files` (msgpack, see file_records), the last three as `byte_strings`, and `first_rows.npy` (int64, the first
one of each file).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch
from shared.retrieval.documents.passages import Passage
from shared.retrieval.index.array_file import mapped_array
from shared.retrieval.index.byte_strings import ByteStrings, file_names_of
from shared.retrieval.index.file_records import FileRecord, FileRecords, packed_record

COLUMNS_NAME = "passages.npy"
FIRST_ROWS_NAME = "first_rows.npy"
TEXTS, HEADINGS, FILES = "texts", "headings", "files"
TABLE_NAMES = (
    COLUMNS_NAME,
    FIRST_ROWS_NAME,
    *(file for strings in (TEXTS, HEADINGS, FILES) for file in file_names_of(strings)),
)
COLUMNS = ("file", "heading", "start", "end")
"""Numbers of its file and heading; its characters in the document."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One document: `key` names its content and how it was read. `page_starts`: the characters at which its
    pages begin, where it has pages. `metadata` is what searches may be narrowed by."""

    name: str
    key: str
    passages: tuple[Passage, ...]
    page_starts: tuple[int, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


class PassageTable:
    def __init__(
        self,
        files: FileRecords,
        headings: ByteStrings,
        columns: npt.NDArray[np.int64],
        texts: ByteStrings,
    ) -> None:
        """`columns` [passages, COLUMNS]; `texts` [passages]."""
        self.files = files
        self.headings = headings
        self.columns = columns
        self.texts = texts

    @classmethod
    def of_files(cls, files: Sequence[IndexedFile]) -> Self:
        headings: dict[bytes, int] = {}
        first_rows: list[int] = []
        rows: list[tuple[int, ...]] = []
        texts: list[bytes] = []
        for number, file in enumerate(files):
            first_rows.append(len(rows))
            for passage in file.passages:
                texts.append(passage.text.encode(errors="surrogatepass"))
                heading = headings.setdefault(passage.heading.encode(errors="surrogatepass"), len(headings))
                rows.append((number, heading, passage.start, passage.end))
        packed = [packed_record(file.name, file.key, file.page_starts, file.metadata) for file in files]
        return cls(
            FileRecords(ByteStrings.of(packed), np.array(first_rows, np.int64)),
            ByteStrings.of(list(headings)),
            np.array(rows, np.int64).reshape(-1, len(COLUMNS)),
            ByteStrings.of(texts),
        )

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[PassageTable, range]]) -> Self:
        """The documents of tables with these numbers, one after the other: the same as `of_files` makes of
        their files."""
        columns = [np.zeros((0, len(COLUMNS)), np.int64)]
        first_rows = [np.zeros(0, np.int64)]
        headings: dict[bytes, int] = {}
        row = number = 0
        for table, documents in parts:
            rows = table.rows_of(documents)
            part = table.columns[rows.start : rows.stop].copy()
            part[:, 0] += number - documents.start
            part[:, 1] = _renumbered(part[:, 1], table.headings, headings)
            columns.append(part)
            first_rows.append(table.files.first_rows[documents.start : documents.stop] + (row - rows.start))
            row += len(rows)
            number += len(documents)
        packed = ByteStrings.joined([table.files.packed.part(documents) for table, documents in parts])
        return cls(
            FileRecords(packed, np.concatenate(first_rows)),
            ByteStrings.of(list(headings)),
            np.concatenate(columns),
            ByteStrings.joined([table.texts.part(table.rows_of(documents)) for table, documents in parts]),
        )

    def __len__(self) -> int:
        return len(self.columns)

    def rows_of(self, documents: range) -> range:
        """Return the rows of documents with consecutive numbers."""
        first_rows = self.files.first_rows
        begin, end = (
            int(first_rows[number]) if number < len(first_rows) else len(self)
            for number in (documents.start, documents.stop)
        )
        return range(begin, end)

    def without_text(self) -> list[str]:
        """Names of documents that have no passage."""
        empty = np.flatnonzero(np.diff(self.files.first_rows, append=len(self)) == 0)
        return [self.files[number].name for number in empty.tolist()]

    def file_of(self, row: int) -> FileRecord:
        return self.files[int(self.columns[row, 0])]

    def passage(self, row: int) -> Passage:
        _, heading, start, end = map(int, self.columns[row])
        return Passage(_text(self.headings[heading]), _text(self.texts[row]), start, end)

    def save(self, folder: Path) -> None:
        """Its files, in a folder that exists."""
        np.save(folder / COLUMNS_NAME, self.columns, allow_pickle=False)
        np.save(folder / FIRST_ROWS_NAME, self.files.first_rows, allow_pickle=False)
        self.texts.save(folder, TEXTS)
        self.headings.save(folder, HEADINGS)
        self.files.packed.save(folder, FILES)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Maps the files, whose checksums the caller has compared. Raises ChecksumMismatch when they do not
        fit each other."""
        try:
            columns, first_rows = (mapped_array(folder / name) for name in (COLUMNS_NAME, FIRST_ROWS_NAME))
            texts, headings, files = (ByteStrings.load(folder, name) for name in (TEXTS, HEADINGS, FILES))
        except (OSError, ValueError) as error:
            raise ChecksumMismatch(f"{folder} has no whole passages ({error})") from error
        if not len(texts) == len(columns) or not _fits(columns, first_rows, len(files), len(headings)):
            raise ChecksumMismatch(f"the files of passages in {folder} do not belong together")
        return cls(FileRecords(files, first_rows), headings, columns, texts)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def _fits(
    columns: npt.NDArray[np.int64], first_rows: npt.NDArray[np.int64], files: int, headings: int
) -> bool:
    if columns.ndim != 2 or columns.shape[1] != len(COLUMNS) or columns.dtype != np.int64:
        return False
    if first_rows.shape != (files,) or first_rows.dtype != np.int64:
        return False
    sizes = np.diff(first_rows, append=len(columns))
    if (sizes < 0).any() or (first_rows[:1] != 0).any() or (len(columns) and not files):
        return False
    of_files = np.array_equal(columns[:, 0], np.repeat(np.arange(files), sizes))
    return bool(of_files and (columns >= 0).all() and (columns[:, 1] < headings).all())


def _renumbered(
    numbers: npt.NDArray[np.int64], names: ByteStrings, headings: dict[bytes, int]
) -> npt.NDArray[np.int64]:
    """`numbers` [passages] of `names` as those of `headings`, to which new ones are added as they come."""
    used, first, of_used = np.unique(numbers, return_index=True, return_inverse=True)
    now = np.zeros(len(used), np.int64)
    for place in np.argsort(first).tolist():
        now[place] = headings.setdefault(names[used[place]], len(headings))
    return now[of_used]
