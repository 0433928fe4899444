"""Files that are there whole or not at all, also after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

NEW_PREFIX = ".new-"
"""Of what is being written."""


def replace_durably(path: Path, data: bytes) -> None:
    """In one step. Raises OSError."""
    new = path.with_name(f"{NEW_PREFIX}{os.getpid()}")  # no mkstemp, whose files are for their owner alone
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """What has been written to this file, or which names are in this folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
