"""Watch whether a corpus has changed, by looking at its files now and then: works on every file system."""

from __future__ import annotations

from pathlib import Path

from shared.errors import NotFound
from shared.files.file_signature import FileSignature, file_signature
from shared.retrieval.documents.corpus import document_files

LOOK_EVERY_S = 2.0


class CorpusWatch:
    """Made before the corpus is indexed, so that no change is missed."""

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self._indexed = self._seen = self._scan()

    def changed(self) -> bool:
        """Return whether it is to be indexed again: something has changed since it was, and nothing since
        the last
        look, so that whoever writes has probably finished. Called every LOOK_EVERY_S."""
        now, before = self._scan(), self._seen
        self._seen = now
        if now != before or now == self._indexed:
            return False
        self._indexed = now
        return True

    def _scan(self) -> dict[Path, FileSignature]:
        try:
            return {path: file_signature(path) for path in document_files(self._corpus)}
        except NotFound:
            return {}
