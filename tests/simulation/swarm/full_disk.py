"""A disk that may be full: files without a name, which refuse what is written while there is no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self


class DiskFile:
    """A real file but for that. `is_full`: whether there is no room now; what would be the first half of a
    write still gets in then."""

    def __init__(self, is_full: Callable[[], bool], **how: Any) -> None:
        self._is_full = is_full
        self._file = TemporaryFile(**how)  # noqa: SIM115 - closed by whoever has it

    def write(self, data: memoryview) -> int:
        if not self._is_full():
            return int(self._file.write(data))
        if len(data) > 1:
            self._file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def seek(self, place: int) -> int:
        return int(self._file.seek(place))

    def readinto(self, room: memoryview) -> int:
        return int(self._file.readinto(room))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
