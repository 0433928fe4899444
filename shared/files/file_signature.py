"""Whether a file has changed, whichever way it was replaced or written."""

from __future__ import annotations

from pathlib import Path

FileSignature = tuple[int, int, int, int] | None
"""The value that is another one after a change; None: there is no such file."""


def file_signature(file: Path) -> FileSignature:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size
