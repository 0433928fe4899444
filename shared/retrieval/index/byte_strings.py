"""Many byte strings as two mapped files, so that a million of them need no more memory than is looked at.

On disk: NAME.bin, one after the other, and NAME.npy, int64: where each one ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch
from shared.retrieval.index.array_file import mapped_array


class ByteStrings:
    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Self:
        ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
        return cls(np.frombuffer(b"".join(strings), np.uint8), ends)

    @classmethod
    def joined(cls, parts: Sequence[ByteStrings]) -> Self:
        """One after the other."""
        before = np.cumsum([0, *(len(part.data) for part in parts)])
        ends = [part.ends + begin for part, begin in zip(parts, before, strict=False)]
        data = np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)])
        return cls(data, np.concatenate([np.zeros(0, np.int64), *ends]))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        return self.data[self._begin(number) : self.ends[number]].tobytes()

    def part(self, numbers: range) -> ByteStrings:
        """Return those with consecutive numbers."""
        begin, end = self._begin(numbers.start), self._begin(numbers.stop)
        return ByteStrings(self.data[begin:end], self.ends[numbers.start : numbers.stop] - begin)

    def _begin(self, number: int) -> int:
        return int(self.ends[number - 1]) if number else 0

    def save(self, folder: Path, name: str) -> None:
        """Save them in a folder that exists."""
        np.save(folder / f"{name}.npy", self.ends, allow_pickle=False)
        self.data.tofile(folder / f"{name}.bin")

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Maps the files, whose checksums the caller has compared. Raises ChecksumMismatch when they do not
        fit each other, and OSError."""
        ends = mapped_array(folder / f"{name}.npy")
        path = folder / f"{name}.bin"
        size = path.stat().st_size
        data = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.zeros(0, np.uint8)
        is_sound = ends.ndim == 1 and ends.dtype == np.int64 and (np.diff(ends, prepend=0) >= 0).all()
        if not is_sound or (int(ends[-1]) if len(ends) else 0) != size:
            raise ChecksumMismatch(f"the files of {name} in {folder} do not belong together")
        return cls(data, ends)


def file_names_of(name: str) -> tuple[str, str]:
    return f"{name}.npy", f"{name}.bin"
