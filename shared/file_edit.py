"""Editing a small file that others read: they see it before or after a change, and no change is lost."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """The folder, because the file itself is another one after each change. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def replace_file(file: Path, text: str, mode: int) -> None:
    """In one step. Its owner stays, who may be the user of a service that reads it. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fchmod(out.fileno(), mode)
            if file.exists() and (owner := file.stat()).st_uid != os.geteuid():
                os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(out.fileno())
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
