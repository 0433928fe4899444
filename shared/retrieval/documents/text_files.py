"""The text of a file, within limits of size, in the encoding that it says."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from shared.retrieval.documents.document import Unreadable

MAX_FILE_BYTES = 16 << 20
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HTML_CHARSET = re.compile(rb"<meta[^>]{0,256}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
CHARSET_BYTES = 1024
"""The bytes in which HTML has to say what it is written in, by its specification."""
NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Python's codecs that are for names and for its own sources, and one that always fails."""


def file_data(path: Path) -> bytes:
    """Raises Unreadable over MAX_FILE_BYTES."""
    check_size(path, MAX_FILE_BYTES)
    return path.read_bytes()


def check_size(path: Path, most: int) -> None:
    size_bytes = path.stat().st_size
    if size_bytes > most:
        raise Unreadable(f"{size_bytes} bytes are over the limit of {most}")


def decoded_html(data: bytes) -> str:
    """Decode a page by the encoding that its beginning names."""
    told = HTML_CHARSET.search(data[:CHARSET_BYTES])
    return decoded(data, told[1].decode() if told else "utf-8")


def decoded(data: bytes, encoding: str = "utf-8") -> str:
    """Decode a text without its byte order mark, which says more than anything else; lines end with \\n."""
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif data.startswith(UTF16_MARKS):
        encoding = "utf-16"
    try:
        text = data.decode(_known(encoding))  # a codec that makes no text of bytes is a LookupError
    except UnicodeError as error:
        raise Unreadable(f"it is not {encoding.upper()} text") from error
    except LookupError as error:
        raise Unreadable(f"it says to be written in {encoding}, which nobody knows") from error
    return checked_text(text.replace("\r\n", "\n").replace("\r", "\n"))


def _known(encoding: str) -> str:
    """Raises LookupError for one that no document may be written in."""
    name = codecs.lookup(encoding).name
    if name.replace("-", "_") in NO_CHARSETS:
        raise LookupError(encoding)
    return name


def checked_text(text: str) -> str:
    if "\0" in text:
        raise Unreadable("it is binary: it has NUL characters")
    return text
