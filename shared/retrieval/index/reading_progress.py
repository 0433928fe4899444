"""Say how far the reading of a corpus is: of the files that have to be read, not of those that are as they
were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """`bytes` are those of the files that have been read, and of the open one by its documents."""

    documents: int
    files: int
    of_files: int
    bytes: int
    of_bytes: int


ReadingProgress = Callable[[ReadSoFar], None]
"""Told before each file, after each document and now and then; what it raises ends the reading."""


class ReadingCount:
    """Counts what is read, and tells it. `sizes` are those of the files that are to be read."""

    def __init__(self, sizes: Mapping[Path, int], tell: ReadingProgress) -> None:
        self._sizes = dict(sizes)
        self._of_files, self._of_bytes = len(sizes), sum(sizes.values())
        self._documents = self._files = self._bytes = self._chars = 0
        self._tell = tell
        self._path: Path | None = None

    def tell(self) -> None:
        here = 0 if self._path is None else min(self._chars, self._sizes.get(self._path, 0))
        self._tell(
            ReadSoFar(self._documents, self._files, self._of_files, self._bytes + here, self._of_bytes)
        )

    def begin(self, path: Path) -> None:
        """The next file is opened."""
        self._path, self._chars = path, 0
        self.tell()

    def add_document(self, chars: int) -> None:
        """The open file has had one more document."""
        self._documents += 1
        self._chars += chars
        self.tell()

    def end(self) -> None:
        """The open file has been read, or need not be."""
        if self._path is not None and (size := self._sizes.pop(self._path, None)) is not None:
            self._files += 1
            self._bytes += size
        self._path = None
