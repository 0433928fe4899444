"""python -m shared.retrieval.documents.document_jobs: read and cut documents where that can be stopped.

Nobody knows what a stranger's file makes of a reader of HTML or PDF. Here it ends with its process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgpack

from shared.process.job_runner import JobLimits, serve_jobs
from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.formats import read_file
from shared.retrieval.documents.passages import Passage

MAX_READ_S = 30.0
MAX_PDF_S = 120.0
"""The CPU time for one file; one that takes longer is left out."""
DOCUMENT_LIMITS = JobLimits(cpu_s=MAX_PDF_S, wall_s=10 * MAX_PDF_S, memory_bytes=2 << 30)
PDF_SUFFIX = ".pdf"


def run_job(payload: bytes) -> bytes:
    """Read a document in a process of its own, which ends when that takes too long."""
    path, _ = msgpack.unpackb(payload)
    if Path(os.fsdecode(path)).suffix.lower() != PDF_SUFFIX:
        signal.setitimer(signal.ITIMER_PROF, MAX_READ_S)
    return read_document(payload)


def read_document(payload: bytes) -> bytes:
    """Return the parts of a document, or why it is left out, as `unpacked_document` takes them."""
    path, name = msgpack.unpackb(payload)
    try:
        document = read_file(Path(os.fsdecode(path)), name)
        passages = [(part.heading, part.text, part.start, part.end) for part in document.cut()]
    except Unreadable as error:
        return _packed(str(error), error.is_lasting)
    except OSError as error:
        return _packed(error.strerror or str(error), False)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file fails anywhere in its reader, in any way
        return _packed(f"it is damaged ({type(error).__name__})", False)
    metadata, page_starts = document.metadata, document.page_starts
    return _packed("", document.text, document.is_markdown, document.title, page_starts, metadata, passages)


def unpacked_document(name: str, result: bytes) -> Document:
    """Raises Unreadable, where that is the result."""
    why, *parts = msgpack.unpackb(result, unicode_errors="surrogatepass")
    if why:
        raise Unreadable(why, is_lasting=parts[0])
    text, is_markdown, title, page_starts, metadata, rows = parts
    pairs = tuple((field, value) for field, value in metadata)
    passages = tuple(Passage(*row) for row in rows)
    return Document(name, text, is_markdown, title, tuple(page_starts), pairs, passages)


def _packed(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(parts, unicode_errors="surrogatepass")
    return packed


if __name__ == "__main__":
    serve_jobs(run_job, DOCUMENT_LIMITS)
