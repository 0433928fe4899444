"""The log of a stack: two files in its state directory that grow no longer than they may.

Only the launcher writes them, whoever reads them may do so at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

from shared.files.atomic_write import SECRET_MODE

LOG_NAME = "stack.log"
EARLIER_LOG_NAME = "stack.log.1"
"""The file that was full last; the one before that is gone."""
MAX_LOG_FILE_BYTES = 16 << 20
"""The longest of the two files of a stack's log; a line that would make it longer begins the next one."""


class RotatedLog:
    """Takes whole lines: none is ever in both files. Opens its file with the first one."""

    def __init__(self, state_dir: Path, limit_bytes: int = MAX_LOG_FILE_BYTES) -> None:
        self.path = state_dir / LOG_NAME
        self._earlier = state_dir / EARLIER_LOG_NAME
        self._limit_bytes = limit_bytes
        self._fd = -1

    def write(self, lines: bytes, /) -> int:
        """Raises OSError, and then the file is as it was."""
        before = self._room_for(len(lines))
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, before)  # a disk that is full takes a part of a line too
            raise
        return len(lines)

    def flush(self) -> None:
        """Do nothing: the kernel has it all."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room_for(self, length: int) -> int:
        """Return how long the open file is, which has room for so much, or is new."""
        while True:
            if self._fd < 0 or not self._is_in_its_place():
                self._open()
            size = os.fstat(self._fd).st_size
            if not size or size + length <= self._limit_bytes:
                return size
            self.path.replace(self._earlier)

    def _is_in_its_place(self) -> bool:
        """Return whether readers find the open file: it may have been full, or somebody has removed it."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.lstat())
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(self.path, flags, SECRET_MODE)
        os.fchmod(opened, SECRET_MODE)
        self.close()
        self._fd = opened
