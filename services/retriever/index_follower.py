"""A retriever goes on to the newest index of a corpus, without a pause: the old one serves until the new one
is open."""

from __future__ import annotations

from pathlib import Path

import structlog

from services.retriever.served_corpus import ServedCorpus
from shared.errors import PenstockError
from shared.retrieval.index.manifest import read_pointer
from shared.retrieval.index.store import open_generation

POLL_S = 1.0
"""The time between two looks for a newer index; one small file is read where it has changed."""

log = structlog.get_logger()


class IndexFollower:
    """Looks into `folder` for newer generations of a corpus' index."""

    def __init__(self, folder: Path, embedder: str, corpus: ServedCorpus) -> None:
        self._folder = folder
        self._embedder = embedder
        self._corpus = corpus
        self._told = ""

    @property
    def troubled(self) -> bool:
        """Return whether the last look met something that may be over, whatever becomes of the files."""
        return self._told != ""

    def follow(self) -> bool:
        """Goes on to the current generation when another index is in it, whatever its number; returns whether
        anything has changed. One that cannot be used leaves the old one in service, and is told of once."""
        corpus = self._corpus
        try:
            current = read_pointer(self._folder)
            if corpus.digest == ("" if current is None else current.manifest):
                return self._forget_trouble()
            opened = open_generation(self._folder, self._embedder)
        except (PenstockError, OSError) as error:
            return self._report_trouble(str(error))
        except Exception as error:  # of whatever reads it: others are followed all the same
            log.exception("index_broken", corpus=corpus.named.name)
            return self._report_trouble(f"its index cannot be read ({type(error).__name__})")
        if opened is None:
            return False
        corpus.replace_index(opened.index, opened.number, opened.digest)
        self._told = ""
        log.info(
            "index_replaced",
            corpus=corpus.named.name,
            generation=opened.number,
            passages=len(opened.index),
        )
        return True

    def _report_trouble(self, trouble: str) -> bool:
        if trouble == self._told:
            return False
        self._told = trouble
        self._corpus.report_trouble(trouble)
        action = "the old one serves" if self._corpus.generation else "there is none to serve"
        log.warning("index_unusable", corpus=self._corpus.named.name, error=trouble, action=action)
        return True

    def _forget_trouble(self) -> bool:
        """The index that is searched is the current one again."""
        if not self._told:
            return False
        self._told = ""
        self._corpus.report_trouble("")
        return True
