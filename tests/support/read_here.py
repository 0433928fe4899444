"""Documents that are read in the test's own process, for tests that build many indexes of a few files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from shared.retrieval.documents.document import Document
from shared.retrieval.documents.document_jobs import read_document, unpacked_document
from shared.retrieval.documents.document_reader import DocumentReader


def read_documents_here(patch: pytest.MonkeyPatch) -> None:
    """What the process of a `DocumentReader` does; starting one takes longer than a small index."""

    def read(_reader: DocumentReader, path: Path, name: str, _look: Callable[[], None]) -> Document:
        return unpacked_document(name, read_document(msgpack.packb([os.fsencode(path.absolute()), name])))

    patch.setattr(DocumentReader, "read", read)
