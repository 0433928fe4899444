"""Metadata, by which searches may be narrowed: what a document says of itself, and its place in the corpus.

Of its place every document has `source`, its name (and, of a line of a JSONL file, that file's), `folder`,
the folders that it is in, each by its path from the corpus, and `suffix`, such as `md`. What it says itself
under these names counts beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

Pairs = tuple[tuple[str, str], ...]
"""Fields with their values; a field may stand several times."""

MAX_METADATA = 32
"""Values of a document, those of all fields together."""
MAX_METADATA_CHARS = 256
"""The longest field and the longest value."""
MAX_TOLD_BYTES = 2048
"""The most of a passage's metadata in an answer, whole fields alone: an answer has up to 50 passages."""
VALUE_JOIN = ", "

PLACE_FIELDS = frozenset({"source", "folder", "suffix"})

_RECORD = re.compile(r"(.+\.jsonl)#", re.IGNORECASE)


def tidied_metadata(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Tidy and sort the metadata that documents give in formats of their own: single spaces, each pair once,
    without what is empty or too long, and of too many the first ones."""
    tidied = dict.fromkeys((_tidied(field), _tidied(value)) for field, value in pairs)
    kept = [
        (field, value)
        for field, value in tidied
        if field and value and max(len(field), len(value)) <= MAX_METADATA_CHARS
    ]
    return tuple(sorted(kept[:MAX_METADATA]))


def _tidied(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split())


def all_values(name: str, metadata: Pairs) -> Iterator[tuple[str, str]]:
    """Return what filters are compared with, for the document of this name."""
    yield from metadata
    yield "source", name
    if record := _RECORD.match(name):
        yield "source", record[1]
    folder, _, file = (record[1] if record else name).rpartition("/")
    while folder:
        yield "folder", folder
        folder = folder.rpartition("/")[0]
    stem, _, suffix = file.rpartition(".")
    if stem and suffix:
        yield "suffix", suffix.lower()


def told_metadata(name: str, metadata: Pairs) -> Pairs:
    """Return what a client is told: each field once, values of one joined; of the place what the document
    does not
    say itself. What does not fit MAX_TOLD_BYTES is left out."""
    values: dict[str, list[str]] = {}
    for field, value in metadata:
        values.setdefault(field, []).append(value)
    own = set(values)
    for field, value in all_values(name, ()):
        if field not in own:
            values.setdefault(field, [value])  # the first one is the nearest
    told, left_bytes = [], MAX_TOLD_BYTES
    for field, of in values.items():
        joined = VALUE_JOIN.join(of)
        size = len(f"{field}{joined}".encode(errors="surrogatepass"))
        if size <= left_bytes:
            left_bytes -= size
            told.append((field, joined))
    return tuple(told)
