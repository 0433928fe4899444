"""The index of a folder: opened, brought up to date, or made anew."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import structlog

from shared.errors import ChecksumMismatch, InvalidRequest, NotFound, TooLarge
from shared.retrieval.corpus import Corpus, read_corpus
from shared.retrieval.document import Document
from shared.retrieval.embedder import DIMENSIONS, MAX_TOKENS, Embedder
from shared.retrieval.index import PassageIndex, embedded_texts
from shared.retrieval.model_files import SHA256, WEIGHTS
from shared.retrieval.passage_table import IndexedFile, PassageTable
from shared.retrieval.passages import MAX_WORDS, MIN_WORDS, OVERLAP_WORDS, split_passages
from shared.retrieval.store import (
    ChunkKeys,
    Generation,
    chunk_keys,
    open_generation,
    remove_unused,
    save_generation,
)
from shared.retrieval.unfinished import UnfinishedVectors
from shared.retrieval.vectors import Vectors

log = structlog.get_logger()

MAX_PASSAGES = 1_000_000
"""1.5 GB of vectors."""

MODEL = f"{SHA256[WEIGHTS]}/{MAX_TOKENS}"
"""What made the vectors: other weights or another length make others."""
SPLITTER = f"2/{MIN_WORDS}/{MAX_WORDS}/{OVERLAP_WORDS}"
"""Part of every file's key: other rules for cutting make other passages."""

LOCK_NAME = "lock"
GROUP_PASSAGES = 512
"""Embedded and kept together: what an interrupted indexing loses."""

MAX_PID_CHARS = 20

Waiting = Callable[[int], None]
"""(id of the process that indexes the same folder; 0 = it is not known)"""
IndexProgress = Callable[[int, int], None]
"""(passages embedded so far, passages to embed)"""


@dataclass(frozen=True, slots=True)
class Built:
    """`embedded` passages were new; `skipped` is what is not in the index, each with the reason. `generation`
    numbers the states of the index: the same one, if nothing has changed."""

    index: PassageIndex
    folder: Path
    generation: int
    embedded: int
    skipped: tuple[tuple[str, str], ...]


def index_folder(state_dir: Path, corpus: str) -> Path:
    """Where the index of `corpus` is kept."""
    name = hashlib.sha256(str(Path(corpus).absolute()).encode()).hexdigest()[:12]
    return state_dir / f"index-{name}"


def build_index(
    corpus: str, state_dir: Path, embedder: Embedder, progress: IndexProgress, *, waiting: Waiting
) -> Built:
    """Embeds what is new or changed since the last time, and keeps the result.

    One that was interrupted has left the old index as it was, and goes on with what it had kept. One process
    at a time per corpus; others tell `waiting` and wait. Raises NotFound, TooLarge (see corpus) and
    InvalidRequest when `state_dir` cannot be written.
    """
    folder = index_folder(state_dir, corpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, waiting):
            return _build(read_corpus(corpus), folder, embedder, progress)
    except OSError as error:
        raise InvalidRequest(
            f"the index cannot be kept in {folder}: {error.strerror or error}; use another --state-dir"
        ) from error


def _build(corpus: Corpus, folder: Path, embedder: Embedder, progress: IndexProgress) -> Built:
    files = tuple(_file(document) for document in corpus.documents)
    empty = ((file.name, "it has no text") for file in files if not file.passages)
    skipped = (*corpus.skipped, *empty)
    old = _old_generation(folder)
    remove_unused(folder)
    content = _content(files)
    if old is not None and old.manifest.content == content:
        return Built(old.index, folder, old.number, 0, skipped)
    table = PassageTable.of_files(files)
    if len(table) > MAX_PASSAGES:
        raise TooLarge(
            f"the folder makes {len(table)} passages, more than {MAX_PASSAGES}; index a smaller one"
        )
    if not len(table):
        raise NotFound("the folder's documents have no text; name a folder that has some")
    texts = embedded_texts(table)
    keys = chunk_keys(texts)
    unfinished = UnfinishedVectors(folder, MODEL, DIMENSIONS)
    vectors, missing = _known_vectors(keys, old, unfinished)
    _embed_missing(texts, keys, vectors, missing, embedder, unfinished, progress)
    save_generation(folder, PassageIndex(table, vectors), keys, embedder=MODEL, content=content)
    unfinished.remove()
    saved = open_generation(folder, MODEL)
    assert saved is not None, "it has just been saved, under the lock"
    return Built(saved.index, folder, saved.number, len(missing), skipped)


def _known_vectors(
    keys: ChunkKeys, old: Generation | None, unfinished: UnfinishedVectors
) -> tuple[Vectors, list[int]]:
    """The vectors [passages, DIMENSIONS] that there are already; and of those that there are not, the first
    row of each different text, in order."""
    kept = unfinished.read()
    if old is not None:
        kept.append((old.keys, old.index.vectors))
    known: dict[bytes, tuple[int, int]] = {}
    for source, (of_source, _) in enumerate(kept):
        known.update((key.tobytes(), (source, row)) for row, key in enumerate(of_source))
    vectors = np.zeros((len(keys), DIMENSIONS), np.float32)
    missing: dict[bytes, int] = {}
    for row, key in enumerate(map(bytes, keys)):
        if key in known:
            source, at = known[key]
            vectors[row] = kept[source][1][at]
        else:
            missing.setdefault(key, row)
    return vectors, list(missing.values())


def _embed_missing(
    texts: list[str],
    keys: ChunkKeys,
    vectors: Vectors,
    missing: list[int],
    embedder: Embedder,
    unfinished: UnfinishedVectors,
    progress: IndexProgress,
) -> None:
    """Fills `vectors` in, also for texts that occur more than once."""
    if not missing:
        return
    progress(0, len(missing))
    for begin in range(0, len(missing), GROUP_PASSAGES):
        rows = missing[begin : begin + GROUP_PASSAGES]

        def tell(done: int, before: int = begin) -> None:
            progress(before + done, len(missing))

        vectors[rows] = embedder.embed_passages([texts[row] for row in rows], tell)
        unfinished.append(keys[rows], vectors[rows])
    first = {keys[row].tobytes(): row for row in missing}
    for row, key in enumerate(map(bytes, keys)):
        if first.get(key, row) != row:
            vectors[row] = vectors[first[key]]


def _old_generation(folder: Path) -> Generation | None:
    """What there is; nothing when it is damaged or made by other rules."""
    try:
        return open_generation(folder, MODEL)
    except (ChecksumMismatch, InvalidRequest) as error:
        log.warning("index_unusable", folder=str(folder), error=error.message, action="it is made anew")
        return None


def _file(document: Document) -> IndexedFile:
    passages = split_passages(document.text, markdown=document.is_markdown, title=document.title)
    kind = "md" if document.is_markdown else "txt"
    key = hashlib.sha256(
        f"{SPLITTER}\0{kind}\0{document.title}\0{document.text}".encode(errors="surrogatepass")
    )
    return IndexedFile(
        document.name, key.hexdigest(), tuple(passages), document.page_starts, document.metadata
    )


def _content(files: tuple[IndexedFile, ...]) -> str:
    told = hashlib.sha256()
    for file in files:
        told.update(
            f"{file.name}\0{file.key}\0{file.page_starts}\0{file.metadata}\n".encode(errors="surrogatepass")
        )
    return told.hexdigest()


@contextmanager
def _locked(folder: Path, waiting: Waiting) -> Iterator[None]:
    with (folder / LOCK_NAME).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(_holder(lock))
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _holder(lock: TextIO) -> int:
    """Who has said to hold it; nobody has just after it was taken."""
    lock.seek(0)
    text = lock.read(MAX_PID_CHARS)
    return int(text) if text.isdecimal() else 0


__all__ = ["DIMENSIONS", "Built", "build_index", "index_folder"]
