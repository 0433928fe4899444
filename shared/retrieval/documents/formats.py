"""Files → documents, by their suffix: Markdown, text, HTML, PDF and JSONL."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.front_matter import read_front_matter
from shared.retrieval.documents.html_text import read_html
from shared.retrieval.documents.metadata import MAX_METADATA, MAX_METADATA_CHARS, Pairs
from shared.retrieval.documents.passages import has_title

MAX_FILE_BYTES = 16 << 20
MAX_JSONL_BYTES = 2 << 30
MAX_LINE_BYTES = 1 << 20
"""The longest line of a JSONL file."""
MAX_TITLE_CHARS = 512
NO_LINE_END = re.compile(r"[^\n]")
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HTML_CHARSET = re.compile(rb"<meta[^>]{0,256}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
HALF_CHARACTER = rb"\ud"
"""The form in which JSON writes half a character: two of them make one."""
CHARSET_BYTES = 1024
"""The bytes in which HTML has to say what it is written in, by its specification."""

Skip = Callable[[str, str], None]
"""(name, reason)"""


def read_documents(path: Path, name: str, skip: Skip) -> Iterator[Document]:
    """Return what the file holds. Raises Unreadable with the reason; lines of a JSONL file go to `skip`,
    each with
    its own."""
    if not path.is_file():
        raise Unreadable("it is no file" if path.exists() else "it is a link that leads nowhere")
    if not _is_unicode(name):
        raise Unreadable("its name is not UTF-8")
    read = READERS[path.suffix.lower()]
    try:
        yield from read(path, name, skip)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error


def _read_markdown(path: Path, name: str, _skip: Skip) -> Iterator[Document]:
    """Its front matter is no text of it, in which all characters stay where they are."""
    text = _decoded(_data(path))
    front = read_front_matter(text)
    text = NO_LINE_END.sub(" ", text[: front.end]) + text[front.end :]
    title = "" if has_title(text) else dict(front.metadata).get("title", "")
    yield Document(name, text, is_markdown=True, title=title, metadata=front.metadata)


def _read_text(path: Path, name: str, _skip: Skip) -> Iterator[Document]:
    yield Document(name, _decoded(_data(path)), is_markdown=False)


def _read_html(path: Path, name: str, _skip: Skip) -> Iterator[Document]:
    data = _data(path)
    told = HTML_CHARSET.search(data[:CHARSET_BYTES])
    page = read_html(_decoded(data, told[1].decode() if told else "utf-8"))
    yield Document(name, page.markdown, is_markdown=True, metadata=page.metadata)


def _read_pdf(path: Path, name: str, _skip: Skip) -> Iterator[Document]:
    from shared.retrieval.documents.pdf_text import read_pdf  # noqa: PLC0415 - a large library, only where there is a PDF

    pdf = read_pdf(_data(path))
    yield Document(name, pdf.text, is_markdown=False, page_starts=pdf.page_starts, metadata=pdf.metadata)


def _read_jsonl(path: Path, name: str, skip: Skip) -> Iterator[Document]:
    """Objects of `text`, and as they like `id` (or `_id`), `title` and `metadata`; blank lines are none."""
    _check_size(path, MAX_JSONL_BYTES)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            try:
                if line.strip():
                    yield _record_document(line, name, number)
            except Unreadable as error:
                skip(f"{name}, line {number}", str(error))
                _skip_rest(file, line)


READERS = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": _read_text,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
    ".jsonl": _read_jsonl,
}
READ_SUFFIXES = ", ".join(READERS)


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
    text = _checked(record["text"])
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
    except UnicodeEncodeError:
        return False
    return True


def _skip_rest(file: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE_BYTES)


def _data(path: Path) -> bytes:
    _check_size(path, MAX_FILE_BYTES)
    return path.read_bytes()


def _check_size(path: Path, most: int) -> None:
    size_bytes = path.stat().st_size
    if size_bytes > most:
        raise Unreadable(f"{size_bytes} bytes are over the limit of {most}")


def _decoded(data: bytes, encoding: str = "utf-8") -> str:
    """Decode a text without its byte order mark, which says more than anything else; lines end with \\n."""
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif data.startswith(UTF16_MARKS):
        encoding = "utf-16"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not {encoding.upper()} text") from error
    except LookupError as error:
        raise Unreadable(f"it says to be written in {encoding}, which nobody knows") from error
    return _checked(text.replace("\r\n", "\n").replace("\r", "\n"))


def _checked(text: str) -> str:
    if "\0" in text:
        raise Unreadable("it is binary: it has NUL characters")
    return text
