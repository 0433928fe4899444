"""The lines of a JSONL file, each a document of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from shared.retrieval.documents.document import Document, FilePart, FilePlace, Unreadable
from shared.retrieval.documents.metadata import MAX_METADATA, MAX_METADATA_CHARS, Pairs
from shared.retrieval.documents.text_files import check_size, checked_text

JSONL_SUFFIX = ".jsonl"
MAX_JSONL_BYTES = 2 << 30
MAX_LINE_BYTES = 1 << 20
"""The longest line."""
PART_BYTES = 1 << 20
"""Lines of so many bytes, or a few more, are read at once."""
MAX_TITLE_CHARS = 512
HALF_CHARACTER = rb"\ud"
"""The form in which JSON writes half a character: two of them make one."""


def read_lines(path: Path, name: str, start: FilePlace) -> FilePart:
    """Read objects of `text`, and as they like `id` (or `_id`), `title` and `metadata`, about PART_BYTES of
    them; blank lines are nothing. Raises Unreadable and OSError."""
    check_size(path, MAX_JSONL_BYTES)
    documents: list[Document] = []
    skipped: list[tuple[int, str]] = []
    with path.open("rb") as file:
        file.seek(start.byte)
        number = start.lines
        while file.tell() < start.byte + PART_BYTES:
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return FilePart(tuple(documents), tuple(skipped))
            number += 1
            try:
                if line.strip():
                    documents.append(_record_document(line, name, number))
            except Unreadable as error:
                skipped.append((number, str(error)))
                _skip_rest(file, line)
        return FilePart(tuple(documents), tuple(skipped), FilePlace(file.tell(), number))


def _record_document(line: bytes, name: str, number: int) -> Document:
    if len(line) > MAX_LINE_BYTES:
        raise Unreadable(f"it is over the limit of {MAX_LINE_BYTES} bytes")
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable("it is no JSON in UTF-8") from error
    if HALF_CHARACTER in line.lower() and not _is_unicode(record):
        raise Unreadable("it has half of a character (a lone surrogate)")
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise Unreadable("it is no object with a `text`")
    title, known_by = record.get("title") or "", record.get("id", record.get("_id", number))
    if not isinstance(title, str) or len(title) > MAX_TITLE_CHARS:
        raise Unreadable(f"its `title` is no text of at most {MAX_TITLE_CHARS} characters")
    if not _is_value(known_by):
        raise Unreadable(f"its `id` is no text or number of at most {MAX_METADATA_CHARS} characters")
    text = checked_text(record["text"])
    metadata = _metadata(record.get("metadata"))
    return Document(
        f"{name}#{known_by}", text, is_markdown=False, title=" ".join(title.split()), metadata=metadata
    )


def _metadata(values: Any) -> Pairs:
    """Sorted, numbers and truth values as JSON writes them, a list as several values."""
    if values is None:
        return ()
    if not isinstance(values, dict):
        raise Unreadable("its `metadata` is no object")
    pairs = [
        (field, value) for field, of in values.items() for value in (of if isinstance(of, list) else [of])
    ]
    if len(pairs) > MAX_METADATA:
        raise Unreadable(f"its `metadata` has {len(pairs)} values, more than {MAX_METADATA}")
    if not all(_is_value(value) and 1 <= len(field) <= MAX_METADATA_CHARS for field, value in pairs):
        raise Unreadable(
            f"its `metadata` has other values than texts, numbers, truth values and lists of them, of "
            f"{MAX_METADATA_CHARS} characters"
        )
    told = ((field, value if isinstance(value, str) else json.dumps(value)) for field, value in pairs)
    return tuple(sorted(set(told)))


def _is_value(value: object) -> bool:
    return isinstance(value, (str, int, float)) and len(str(value)) <= MAX_METADATA_CHARS


def _is_unicode(record: Any) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _skip_rest(file: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE_BYTES)
