"""The passages of an index, in its order: read from mapped files one by one, so that a million of them need
no more memory than is looked at.

On disk: `files.msgpack` (the documents and all headings), `passages.npy` (int64, a row of COLUMNS each) and
`texts.bin` (their texts in UTF-8, one after the other).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgpack
import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch
from shared.retrieval.passages import Passage

FILES_NAME = "files.msgpack"
COLUMNS_NAME = "passages.npy"
TEXTS_NAME = "texts.bin"
TABLE_NAMES = (FILES_NAME, COLUMNS_NAME, TEXTS_NAME)
COLUMNS = ("file", "heading", "text_end", "start", "end")
"""Numbers of its file and heading; where its text ends in `texts.bin`, in bytes; its characters in the
document."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One document: `key` names its content and how it was read. `page_starts`: the characters at which its
    pages begin, where it has pages. `metadata` is what searches may be narrowed by."""

    name: str
    key: str
    passages: tuple[Passage, ...]
    page_starts: tuple[int, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What is kept of a document beside its passages, which are rows `first_row` and on."""

    name: str
    key: str
    first_row: int
    page_starts: tuple[int, ...]
    metadata: tuple[tuple[str, str], ...]

    def page_at(self, character: int) -> int:
        """From 1 on; 0 where the document has no pages."""
        return bisect_right(self.page_starts, character)


class PassageTable:
    def __init__(
        self,
        files: tuple[FileRecord, ...],
        headings: list[str],
        columns: npt.NDArray[np.int64],
        texts: npt.NDArray[np.uint8],
    ) -> None:
        """`columns` [passages, COLUMNS]; `texts` in UTF-8."""
        self.files = files
        self.headings = headings
        self.columns = columns
        self.texts = texts

    @classmethod
    def of_files(cls, files: Sequence[IndexedFile]) -> Self:
        headings: dict[str, int] = {}
        records: list[FileRecord] = []
        rows: list[tuple[int, ...]] = []
        texts: list[bytes] = []
        text_end = 0
        for number, file in enumerate(files):
            records.append(FileRecord(file.name, file.key, len(rows), file.page_starts, file.metadata))
            for passage in file.passages:
                text = passage.text.encode(errors="surrogatepass")
                text_end += len(text)
                texts.append(text)
                heading = headings.setdefault(passage.heading, len(headings))
                rows.append((number, heading, text_end, passage.start, passage.end))
        columns = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
        return cls(tuple(records), list(headings), columns, np.frombuffer(b"".join(texts), np.uint8))

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[PassageTable, range]]) -> Self:
        """The documents of tables with these numbers, one after the other: the same as `of_files` makes of
        their files."""
        records: list[FileRecord] = []
        columns: list[npt.NDArray[np.int64]] = []
        texts: list[npt.NDArray[np.uint8]] = []
        headings: dict[str, int] = {}
        row = text_end = 0
        for table, documents in parts:
            rows = table.rows_of(documents)
            part = table.columns[rows.start : rows.stop].copy()
            text_start = table.text_start(rows.start)
            part_texts = table.texts[text_start : table.text_start(rows.stop)]
            part[:, 0] += len(records) - documents.start
            part[:, 1] = _renumbered(part[:, 1], table.headings, headings)
            part[:, 2] += text_end - text_start
            records += (
                replace(file, first_row=file.first_row + row - rows.start)
                for file in table.files[documents.start : documents.stop]
            )
            columns.append(part)
            texts.append(part_texts)
            row += len(rows)
            text_end += len(part_texts)
        joined = np.concatenate(columns) if columns else np.zeros((0, len(COLUMNS)), np.int64)
        return cls(tuple(records), list(headings), joined, np.concatenate([np.zeros(0, np.uint8), *texts]))

    def __len__(self) -> int:
        return len(self.columns)

    def rows_of(self, documents: range) -> range:
        """Of the passages of documents with consecutive numbers."""
        begin, end = (
            self.files[number].first_row if number < len(self.files) else len(self)
            for number in (documents.start, documents.stop)
        )
        return range(begin, end)

    def without_text(self) -> list[str]:
        """Names of documents that have no passage."""
        return [
            file.name for number, file in enumerate(self.files) if not self.rows_of(range(number, number + 1))
        ]

    def file_of(self, row: int) -> FileRecord:
        return self.files[int(self.columns[row, 0])]

    def passage(self, row: int) -> Passage:
        _, heading, text_end, start, end = map(int, self.columns[row])
        text = self.texts[self.text_start(row) : text_end].tobytes().decode(errors="surrogatepass")
        return Passage(self.headings[heading], text, start, end)

    def text_start(self, row: int) -> int:
        return int(self.columns[row - 1, 2]) if row else 0

    def save(self, folder: Path) -> None:
        """Its files, in a folder that exists."""
        files = [
            [file.name, file.key, file.first_row, file.page_starts, file.metadata] for file in self.files
        ]
        packed = msgpack.packb({"files": files, "headings": self.headings}, unicode_errors="surrogatepass")
        (folder / FILES_NAME).write_bytes(packed)
        np.save(folder / COLUMNS_NAME, self.columns, allow_pickle=False)
        self.texts.tofile(folder / TEXTS_NAME)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Maps the files, whose checksums the caller has compared. Raises ChecksumMismatch when they do not
        fit each other."""
        try:
            told = msgpack.unpackb((folder / FILES_NAME).read_bytes(), unicode_errors="surrogatepass")
            files, headings = tuple(map(_record, told["files"])), list(told["headings"])
            columns = np.asarray(np.load(folder / COLUMNS_NAME, mmap_mode="r", allow_pickle=False))
            size = (folder / TEXTS_NAME).stat().st_size
            texts = np.asarray(
                np.memmap(folder / TEXTS_NAME, np.uint8, "r") if size else np.zeros(0, np.uint8)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ChecksumMismatch(f"{folder} has no whole passages ({error})") from error
        if not _fits(columns, files, len(headings), len(texts)):
            raise ChecksumMismatch(f"the files of passages in {folder} do not belong together")
        return cls(files, headings, columns, texts)


def _record(row: Any) -> FileRecord:
    name, key, first_row, page_starts, metadata = row
    return FileRecord(name, key, first_row, tuple(page_starts), tuple((name, to) for name, to in metadata))


def _fits(
    columns: npt.NDArray[np.int64], files: tuple[FileRecord, ...], headings: int, text_bytes: int
) -> bool:
    if columns.ndim != 2 or columns.shape[1] != len(COLUMNS) or columns.dtype != np.int64:
        return False
    first_rows = [*(file.first_row for file in files), len(columns)]
    sizes = np.diff(first_rows)
    if first_rows[0] != 0 or (sizes < 0).any() or not len(columns):
        return not len(columns) and not any(first_rows) and text_bytes == 0
    of_files = np.array_equal(columns[:, 0], np.repeat(np.arange(len(files)), sizes))
    bounded = columns.min() >= 0 and columns[:, 1].max() < headings
    return bool(of_files and bounded and columns[-1, 2] == text_bytes and (np.diff(columns[:, 2]) >= 0).all())


def _renumbered(
    numbers: npt.NDArray[np.int64], names: list[str], headings: dict[str, int]
) -> npt.NDArray[np.int64]:
    """`numbers` [passages] of `names` as those of `headings`, to which new ones are added as they come."""
    used, first, of_used = np.unique(numbers, return_index=True, return_inverse=True)
    now = np.zeros(len(used), np.int64)
    for place in np.argsort(first).tolist():
        now[place] = headings.setdefault(names[used[place]], len(headings))
    return now[of_used]
