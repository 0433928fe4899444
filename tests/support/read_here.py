"""Documents that are read in the test's own process, for tests that build many indexes of a few files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.retrieval.documents.document import START, FilePart, FilePlace
from shared.retrieval.documents.document_jobs import packed_job, read_file_part, unpacked_part
from shared.retrieval.documents.document_reader import DocumentReader


def read_documents_here(patch: pytest.MonkeyPatch) -> None:
    """What the process of a `DocumentReader` does; starting one takes longer than a small index."""

    def read(
        _reader: DocumentReader, path: Path, name: str, _look: Callable[[], None], start: FilePlace = START
    ) -> FilePart:
        return unpacked_part(name, read_file_part(packed_job(path, name, start)))

    patch.setattr(DocumentReader, "read", read)
