"""Write files that are there whole or not at all, whoever is killed meanwhile, also after a loss of power."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_PREFIX = ".new-"
"""Begins the name of a file that is being written."""
SECRET_MODE = 0o600
"""Its owner alone may read such a file."""


def write_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Put `data` at `path` in one step; `mode` as in `new_file`. Raises OSError."""
    with new_file(path, mode=mode) as new:
        new.write_bytes(data)


def write_secret(path: Path, text: str) -> None:
    """Put `text` into a file that nobody else can read, not even for a moment. Raises OSError."""
    write_file(path, text.encode(), mode=SECRET_MODE)


@contextmanager
def new_file(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield the path of an empty file that takes the place of `path` when the block ends without an error.

    Its mode is what the umask leaves, whatever the block does to it. A `mode` of its own is for files that a
    service may have to read under another user: such a file keeps the owner of the one that it replaces.
    Raises OSError.
    """
    new = path.with_name(f"{NEW_PREFIX}{os.getpid()}-{path.name}")
    new.unlink(missing_ok=True)  # a process of the same number may have died while it wrote
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else SECRET_MODE)
    try:
        final = stat.S_IMODE(os.fstat(handle).st_mode) if mode is None else mode
        os.close(handle)
        yield new
        new.chmod(final)
        if mode is not None and path.exists() and (owner := path.stat()).st_uid != os.geteuid():
            os.chown(new, owner.st_uid, owner.st_gid)
        sync(new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make durable what has been written to this file, or the names in this folder. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
