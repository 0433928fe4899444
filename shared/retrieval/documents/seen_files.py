"""Remember what the files of a corpus were when they were read: those that are as they were need not be read
again.

FOLDER/seen.msgpack: SHA-256 of what follows, then {"rules", "content", "files"}, a row of name, signature,
documents, characters, what was left out with the reason, and whether it was whole, for each file in its
order. It belongs to the generation of that `content`, whose documents it counts; to any other it says
nothing, and neither does a damaged one: then all files are read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from shared.files.atomic_write import write_file
from shared.files.file_signature import FileSignature
from shared.retrieval.documents.corpus import FileSummary

SEEN_NAME = "seen.msgpack"
MAX_SEEN_BYTES = 1 << 28
DIGEST_BYTES = 32
SETTLED_NS = 2_000_000_000
"""A file that was written later than this before it was read may be written once more without looking other
than it did: clocks of file systems stand still for up to two seconds (FAT's)."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """`signature` is None for what has to be read again in any case."""

    name: str
    signature: FileSignature
    summary: FileSummary


def settled(signature: FileSignature, read_ns: int) -> FileSignature:
    """Return the signature of a file that was read from `read_ns` on; None where a change since then may not
    show in it."""
    if signature is None:
        return None
    modified_ns, changed_ns, _, _ = signature
    return signature if max(modified_ns, changed_ns) + SETTLED_NS <= read_ns else None


def save_seen(folder: Path, rules: str, content: str, files: list[SeenFile]) -> None:
    """Raises OSError."""
    rows = [
        (
            file.name,
            file.signature,
            file.summary.documents,
            file.summary.chars,
            file.summary.skipped,
            file.summary.is_whole,
        )
        for file in files
    ]
    told = {"rules": rules, "content": content, "files": rows}
    packed = msgpack.packb(told, unicode_errors="surrogatepass")
    write_file(folder / SEEN_NAME, hashlib.sha256(packed).digest() + packed)


def read_seen(folder: Path, rules: str, content: str) -> list[SeenFile]:
    """Read what was seen for the generation of this content, if by these rules; else none."""
    try:
        with (folder / SEEN_NAME).open("rb") as file:
            data = file.read(MAX_SEEN_BYTES)
    except FileNotFoundError:
        return []
    packed = data[DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != data[:DIGEST_BYTES]:
        return []
    told = msgpack.unpackb(packed, unicode_errors="surrogatepass")
    if (told["rules"], told["content"]) != (rules, content):
        return []
    return [_seen(row) for row in told["files"]]


def _seen(row: Any) -> SeenFile:
    name, signature, documents, chars, skipped, is_whole = row
    reasons = tuple((of, reason) for of, reason in skipped)
    return SeenFile(
        name,
        None if signature is None else tuple(signature),
        FileSummary(documents, chars, reasons, is_whole),
    )
