"""Read the log of a stack while it is written: each line once, from one file to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shared.files.rotated_log import EARLIER_LOG_NAME, LOG_NAME


class LogReader:
    """Holds the file that it has come to open, so that it is read to its end also when it has been replaced.

    `has_missed`: the log went on by more than a file while nobody read, so that lines may be missing.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOG_NAME
        self._earlier = state_dir / EARLIER_LOG_NAME
        self._file: IO[bytes] | None = _opened(self._earlier) or _opened(self._path)
        self._rest = b""
        self.has_missed = False

    @property
    def is_there(self) -> bool:
        """Return whether there is a log."""
        return self._file is not None

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that have come since, without their line ends."""
        while self._file is not None:
            following = self._following()  # looked for first: then what is read here is all there is of it
            for line in self._file:
                if line.endswith(b"\n"):
                    yield self._rest + line[:-1]
                    self._rest = b""
                else:
                    self._rest += line
            if following is None:
                return
            self._file.close()
            self._file, self._rest = following, b""  # a writer that was killed has ended within a line

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _following(self) -> IO[bytes] | None:
        """Return the file that comes after the one that is read, None while that is the last one."""
        newest = _opened(self._path)
        if newest is None or self._is_read(newest):
            return None
        earlier = _opened(self._earlier)
        if earlier is None or self._is_read(earlier):
            return newest
        newest.close()
        self.has_missed = True
        return earlier

    def _is_read(self, file: IO[bytes]) -> bool:
        """Return whether it is the file that is being read; closes it then."""
        assert self._file is not None
        is_same = os.path.samestat(os.fstat(file.fileno()), os.fstat(self._file.fileno()))
        if is_same:
            file.close()
        return is_same


def _opened(path: Path) -> IO[bytes] | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
