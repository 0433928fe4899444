"""The index of a folder: loaded, brought up to date, or made anew."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from shared.errors import ChecksumMismatch, InvalidRequest, NotFound, TooLarge
from shared.retrieval.corpus import Corpus, Document, read_corpus
from shared.retrieval.embedder import DIMENSIONS, MAX_TOKENS, Embedder
from shared.retrieval.index import IndexedFile, PassageIndex
from shared.retrieval.model_files import SHA256, WEIGHTS
from shared.retrieval.passages import MAX_WORDS, MIN_WORDS, OVERLAP_WORDS, split_passages
from shared.retrieval.store import load_index, save_index
from shared.retrieval.vectors import Vectors

log = structlog.get_logger()

MAX_PASSAGES = 200_000
"""300 MB of vectors; a flat search over them takes some 20 ms."""

MODEL = f"{SHA256[WEIGHTS]}/{MAX_TOKENS}"
SPLITTER = f"1/{MIN_WORDS}/{MAX_WORDS}/{OVERLAP_WORDS}"
"""Part of every file's key: other rules for cutting make other passages."""

LOCK_NAME = "lock"

IndexProgress = Callable[[int, int], None]
"""(passages embedded so far, passages to embed)"""


@dataclass(frozen=True, slots=True)
class Built:
    """`embedded` passages were new; `skipped` files could not be read, each with the reason."""

    index: PassageIndex
    folder: Path
    embedded: int
    skipped: tuple[tuple[str, str], ...]


def index_folder(state_dir: Path, corpus: str) -> Path:
    """Where the index of `corpus` is kept."""
    name = hashlib.sha256(str(Path(corpus).absolute()).encode()).hexdigest()[:12]
    return state_dir / f"index-{name}"


def build_index(corpus: str, state_dir: Path, embedder: Embedder, progress: IndexProgress) -> Built:
    """Embeds what is new or changed since the last time, and keeps the result.

    One process at a time per corpus; others wait. Raises NotFound, TooLarge (see corpus) and
    InvalidRequest when `state_dir` cannot be written.
    """
    folder = index_folder(state_dir, corpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _build(read_corpus(corpus), folder, embedder, progress)
    except OSError as error:
        raise InvalidRequest(
            f"the index cannot be kept in {folder}: {error.strerror or error}; use another --state-dir"
        ) from error


def _build(corpus: Corpus, folder: Path, embedder: Embedder, progress: IndexProgress) -> Built:
    known = _known(folder)
    files = tuple(_file(document) for document in corpus.documents)
    new = [file for file in files if file.key not in known]
    texts = [passage.embedded_text for file in new for passage in file.passages]
    total = sum(len(file.passages) for file in files)
    if total > MAX_PASSAGES:
        raise TooLarge(f"the folder makes {total} passages, more than {MAX_PASSAGES}; index a smaller one")
    if not total:
        raise NotFound("the folder's documents have no text; name a folder that has some")
    vectors = embedder.embed(texts, lambda done: progress(done, len(texts)))
    row = 0
    for file in new:
        known[file.key] = vectors[row : row + len(file.passages)]
        row += len(file.passages)
    index = PassageIndex(files, np.concatenate([known[file.key] for file in files]))
    save_index(folder, index, MODEL)
    return Built(index, folder, len(texts), corpus.skipped)


def _known(folder: Path) -> dict[str, Vectors]:
    """Vectors of the stored index by file key; nothing when it is damaged."""
    try:
        index = load_index(folder, MODEL)
    except ChecksumMismatch as error:
        log.warning("index_damaged", folder=str(folder), error=error.message, action="it is made anew")
        index = None
    known: dict[str, Vectors] = {}
    if index is not None:
        row = 0
        for file in index.files:
            known[file.key] = index.vectors[row : row + len(file.passages)]
            row += len(file.passages)
    return known


def _file(document: Document) -> IndexedFile:
    passages = split_passages(document.text, markdown=document.is_markdown)
    kind = "md" if document.is_markdown else "txt"
    key = hashlib.sha256(f"{SPLITTER}\0{kind}\0{document.text}".encode()).hexdigest()
    return IndexedFile(document.name, key, tuple(passages))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / LOCK_NAME).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


__all__ = ["DIMENSIONS", "Built", "build_index", "index_folder"]
