"""python -m shared.retrieval.documents.document_jobs: read and cut documents where that can be stopped.

Nobody knows what a stranger's file makes of a reader of HTML, PDF or JSON. Here it ends with its process.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from shared.process.job_runner import JobLimits, serve_jobs
from shared.retrieval.documents.document import START, Document, FilePart, FilePlace, Unreadable
from shared.retrieval.documents.formats import read_file
from shared.retrieval.documents.jsonl import JSONL_SUFFIX, read_lines
from shared.retrieval.documents.passages import Passage

MAX_READ_S = 30.0
MAX_PDF_S = 120.0
"""The CPU time for one file, or a part of one whose lines are documents; what takes longer is left out."""
DOCUMENT_LIMITS = JobLimits(cpu_s=MAX_PDF_S, wall_s=10 * MAX_PDF_S, memory_bytes=2 << 30)
PDF_SUFFIX = ".pdf"


def run_job(payload: bytes) -> bytes:
    """Read a part of a file in a process of its own, which ends when that takes too long."""
    path, *_ = msgpack.unpackb(payload)
    if Path(os.fsdecode(path)).suffix.lower() != PDF_SUFFIX:
        signal.setitimer(signal.ITIMER_PROF, MAX_READ_S)
    return read_file_part(payload)


def packed_job(path: Path, name: str, start: FilePlace = START) -> bytes:
    """Return what `run_job` and `read_file_part` take."""
    packed: bytes = msgpack.packb([os.fsencode(path.absolute()), name, *start])
    return packed


def read_file_part(payload: bytes) -> bytes:
    """Return the documents of a part of a file, or why it is left out, as `unpacked_part` takes them."""
    path, name, *start = msgpack.unpackb(payload)
    try:
        part = _part_of(Path(os.fsdecode(path)), name, FilePlace(*start))
    except Unreadable as error:
        return _packed(str(error), error.is_lasting)
    except OSError as error:
        return _packed(error.strerror or str(error), False)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file fails anywhere in its reader, in any way
        return _packed(f"it is damaged ({type(error).__name__})", False)
    return _packed("", [_row(each, name) for each in part.documents], part.skipped, part.rest)


def unpacked_part(name: str, result: bytes) -> FilePart:
    """Raises Unreadable, where that is the result."""
    why, *parts = msgpack.unpackb(result, unicode_errors="surrogatepass")
    if why:
        raise Unreadable(why, is_lasting=parts[0])
    rows, skipped, rest = parts
    documents = tuple(_document(name, *row) for row in rows)
    lines = tuple((number, reason) for number, reason in skipped)
    return FilePart(documents, lines, None if rest is None else FilePlace(*rest))


def _part_of(path: Path, name: str, start: FilePlace) -> FilePart:
    if path.suffix.lower() == JSONL_SUFFIX:
        return read_lines(path, name, start)
    document = read_file(path, name)
    return FilePart((replace(document, passages=document.cut()),))


def _row(document: Document, name: str) -> tuple[Any, ...]:
    """Names of lines begin with that of their file, which may be long and is not said again for each."""
    own, cut = document.name.removeprefix(name), document.passages
    passages = None if cut is None else [(part.heading, part.text, part.start, part.end) for part in cut]
    is_markdown, title, page_starts = document.is_markdown, document.title, document.page_starts
    return own, document.text, is_markdown, title, page_starts, document.metadata, passages


def _document(
    name: str,
    own: str,
    text: str,
    is_markdown: bool,
    title: str,
    page_starts: list[int],
    metadata: list[list[str]],
    rows: list[list[Any]] | None,
) -> Document:
    pairs = tuple((field, value) for field, value in metadata)
    passages = None if rows is None else tuple(Passage(*row) for row in rows)
    return Document(name + own, text, is_markdown, title, tuple(page_starts), pairs, passages)


def _packed(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(parts, unicode_errors="surrogatepass")
    return packed


if __name__ == "__main__":
    serve_jobs(run_job, DOCUMENT_LIMITS)
