"""The text of a PDF, page after page."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pypdf import PdfReader

from shared.retrieval.documents.document import Unreadable
from shared.retrieval.documents.metadata import Pairs, tidied_metadata

MAX_PDF_PAGES = 5_000
MAX_PDF_S = 120.0
"""A file whose pages take longer is left out."""
INFORMATION = {"title": "/Title", "author": "/Author", "year": "/CreationDate"}
YEAR = re.compile(r"(?:D:)?(\d{4})")
HYPHENATED = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_A-Z])")
"""A word that goes on in the next line, which begins with a small letter."""

logging.getLogger("pypdf").setLevel(
    logging.CRITICAL
)  # what it cannot read is told as a reason, not beside it


@dataclass(frozen=True, slots=True)
class PdfText:
    """Its pages begin at these characters; `metadata` is its title, author and year, where it says them."""

    text: str
    page_starts: tuple[int, ...]
    metadata: Pairs


def read_pdf(data: bytes, clock: Callable[[], float] = time.monotonic) -> PdfText:
    """Raises Unreadable with the reason."""
    try:
        return _read(data, clock() + MAX_PDF_S, clock)
    except Unreadable:
        raise
    except Exception as error:  # a damaged file fails anywhere in the reader, in any way
        raise Unreadable(f"it is damaged ({type(error).__name__})") from error


def _read(data: bytes, end_s: float, clock: Callable[[], float]) -> PdfText:
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("it is encrypted")
    if len(reader.pages) > MAX_PDF_PAGES:
        raise Unreadable(f"its {len(reader.pages)} pages are over the limit of {MAX_PDF_PAGES}")
    text, page_starts = "", []
    for page in reader.pages:
        if clock() > end_s:
            raise Unreadable(f"it takes longer than {MAX_PDF_S:.0f} s to read")
        page_starts.append(len(text))
        text += HYPHENATED.sub("", page.extract_text().strip()) + "\n"
    if not text.strip():
        raise Unreadable("its pages have no text; scanned ones need OCR first")
    return PdfText(text.encode(errors="replace").decode(), tuple(page_starts), _information(reader))


def _information(reader: PdfReader) -> Pairs:
    """A document whose information is damaged is read all the same."""
    try:
        told: Mapping[str, Any] = reader.metadata or {}
        values = {field: str(told.get(key) or "") for field, key in INFORMATION.items()}
    except Exception:  # noqa: BLE001 - as with its pages: it fails anywhere in the reader, in any way
        return ()
    year = YEAR.match(values.pop("year"))
    return tidied_metadata([*values.items(), ("year", year[1] if year else "")])
