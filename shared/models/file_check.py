"""Tell what a file is by its digests, as a hub states them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from shared.errors import ChecksumMismatch, InvalidRequest
from shared.files.model_store import KeptFile

CHUNK_BYTES = 1 << 20

Noted = Callable[[int], None]
"""Takes how many bytes more have been dealt with."""


def digest_file(path: Path, noted: Noted) -> KeptFile:
    """Return the digest and size of a file. Raises OSError."""
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(path):
        digest.update(chunk)
        size_bytes += len(chunk)
        noted(len(chunk))
    return KeptFile(path.name, size_bytes, digest.hexdigest())


def copy_file(source: Path, target: Path, noted: Noted) -> KeptFile:
    """Copy a file, and return its digest and size. Raises OSError; InvalidRequest where it was written to
    meanwhile."""
    digest, size_bytes, before = hashlib.sha256(), 0, source.stat()
    with target.open("wb") as copy:
        for chunk in _chunks(source):
            digest.update(chunk)
            copy.write(chunk)
            size_bytes += len(chunk)
            noted(len(chunk))
    after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (size_bytes, after.st_mtime_ns):
        raise InvalidRequest(f"{source} was written to while it was copied; pull it again when it is whole")
    return KeptFile(target.name, size_bytes, digest.hexdigest())


def check_digest(path: Path, found: KeptFile, sha256: str, git_sha1: str) -> None:
    """Compare with what the hub states: a sha256 of large files, of small ones git's name of the content.

    Raises ChecksumMismatch, and removes the file.
    """
    wrong = found.sha256 != sha256 if sha256 else _git_sha1(path) != git_sha1
    if wrong:
        path.unlink()
        raise ChecksumMismatch(
            f"{path.name} is not what the hub says that it is, and has been removed; pull the model again"
        )


def _git_sha1(path: Path) -> str:
    digest = hashlib.sha1(
        b"blob %d\0" % os.stat(path).st_size, usedforsecurity=False
    )  # git's name, no secret
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
