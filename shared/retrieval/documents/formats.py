"""Files → documents, by their suffix: Markdown, text, HTML and PDF."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from shared.retrieval.documents.document import Document
from shared.retrieval.documents.front_matter import read_front_matter
from shared.retrieval.documents.html_text import read_html
from shared.retrieval.documents.passages import has_title
from shared.retrieval.documents.text_files import decoded, decoded_html, file_data

NO_LINE_END = re.compile(r"[^\n]")


def read_file(path: Path, name: str) -> Document:
    """Return what the file holds. Raises Unreadable with the reason, OSError, and whatever a damaged file
    makes of its reader."""
    return READERS[path.suffix.lower()](path, name)


def _read_markdown(path: Path, name: str) -> Document:
    """Its front matter is no text of it, in which all characters stay where they are."""
    text = decoded(file_data(path))
    front = read_front_matter(text)
    text = NO_LINE_END.sub(" ", text[: front.end]) + text[front.end :]
    title = "" if has_title(text) else dict(front.metadata).get("title", "")
    return Document(name, text, is_markdown=True, title=title, metadata=front.metadata)


def _read_text(path: Path, name: str) -> Document:
    return Document(name, decoded(file_data(path)), is_markdown=False)


def _read_html(path: Path, name: str) -> Document:
    page = read_html(decoded_html(file_data(path)))
    return Document(name, page.markdown, is_markdown=True, metadata=page.metadata)


def _read_pdf(path: Path, name: str) -> Document:
    from shared.retrieval.documents.pdf_text import read_pdf  # noqa: PLC0415 - a large library, only where there is a PDF

    pdf = read_pdf(file_data(path))
    return Document(name, pdf.text, is_markdown=False, page_starts=pdf.page_starts, metadata=pdf.metadata)


READERS: dict[str, Callable[[Path, str], Document]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": _read_text,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}
