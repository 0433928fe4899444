"""The index of a folder: loaded, brought up to date, or made anew."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import structlog

from shared.errors import ChecksumMismatch, InvalidRequest, NotFound, TooLarge
from shared.retrieval.corpus import Corpus, Document, read_corpus
from shared.retrieval.embedder import DIMENSIONS, MAX_TOKENS, Embedder
from shared.retrieval.index import IndexedFile, PassageIndex
from shared.retrieval.model_files import SHA256, WEIGHTS
from shared.retrieval.passages import MAX_WORDS, MIN_WORDS, OVERLAP_WORDS, split_passages
from shared.retrieval.store import clear_unfinished_files, load_index, save_index
from shared.retrieval.vectors import Vectors

log = structlog.get_logger()

MAX_PASSAGES = 200_000
"""300 MB of vectors; a flat search over them takes some 20 ms."""

MODEL = f"{SHA256[WEIGHTS]}/{MAX_TOKENS}"
SPLITTER = f"1/{MIN_WORDS}/{MAX_WORDS}/{OVERLAP_WORDS}"
"""Part of every file's key: other rules for cutting make other passages."""

LOCK_NAME = "lock"
UNFINISHED = "unfinished"
"""The folder in which an indexing that goes on keeps what it has so far."""
KEEP_EVERY_S = 15.0
GROUP_PASSAGES = 512

MAX_PID_CHARS = 20

Waiting = Callable[[int], None]
"""(id of the process that indexes the same folder; 0 = it is not known)"""
IndexProgress = Callable[[int, int], None]
"""(passages embedded so far, passages to embed)"""


@dataclass(frozen=True, slots=True)
class Built:
    """`embedded` passages were new; `skipped` is what is not in the index, each with the reason."""

    index: PassageIndex
    folder: Path
    embedded: int
    skipped: tuple[tuple[str, str], ...]


def index_folder(state_dir: Path, corpus: str) -> Path:
    """Where the index of `corpus` is kept."""
    name = hashlib.sha256(str(Path(corpus).absolute()).encode()).hexdigest()[:12]
    return state_dir / f"index-{name}"


def build_index(
    corpus: str,
    state_dir: Path,
    embedder: Embedder,
    progress: IndexProgress,
    *,
    waiting: Waiting,
    keep_every_s: float = KEEP_EVERY_S,
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
            clear_unfinished_files(folder)
            return _build(read_corpus(corpus), folder, embedder, progress, keep_every_s)
    except OSError as error:
        raise InvalidRequest(
            f"the index cannot be kept in {folder}: {error.strerror or error}; use another --state-dir"
        ) from error


def _build(
    corpus: Corpus, folder: Path, embedder: Embedder, progress: IndexProgress, keep_every_s: float
) -> Built:
    files = tuple(_file(document) for document in corpus.documents)
    total = sum(len(file.passages) for file in files)
    if total > MAX_PASSAGES:
        raise TooLarge(f"the folder makes {total} passages, more than {MAX_PASSAGES}; index a smaller one")
    if not total:
        raise NotFound("the folder's documents have no text; name a folder that has some")
    known = _known(folder) | _known(folder / UNFINISHED)
    new = [file for file in files if file.key not in known]
    embedded = sum(len(file.passages) for file in new)
    if embedded:
        progress(0, embedded)
    done, kept_s = 0, time.monotonic()
    for group in _groups(new):
        if time.monotonic() - kept_s >= keep_every_s:
            _keep_unfinished(folder, files, known)
            kept_s = time.monotonic()
        _embed_files(group, embedder, known, partial(_tell, progress, done, embedded))
        done += sum(len(file.passages) for file in group)
    index = _index_of(files, known)
    save_index(folder, index, MODEL)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    empty = ((file.name, "it has no text") for file in files if not file.passages)
    return Built(index, folder, embedded, (*corpus.skipped, *empty))


def _groups(files: list[IndexedFile]) -> Iterator[list[IndexedFile]]:
    """Files that are embedded together: what is kept is whole files."""
    group: list[IndexedFile] = []
    passages = 0
    for file in files:
        group.append(file)
        passages += len(file.passages)
        if passages >= GROUP_PASSAGES:
            yield group
            group, passages = [], 0
    if group:
        yield group


def _embed_files(
    files: list[IndexedFile], embedder: Embedder, known: dict[str, Vectors], progress: Callable[[int], None]
) -> None:
    texts = [passage.embedded_text for file in files for passage in file.passages]
    vectors = embedder.embed_passages(texts, progress)
    row = 0
    for file in files:
        known[file.key] = vectors[row : row + len(file.passages)]
        row += len(file.passages)


def _tell(progress: IndexProgress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _keep_unfinished(folder: Path, files: tuple[IndexedFile, ...], known: dict[str, Vectors]) -> None:
    """Beside the index, which stays as it is until the new one is whole."""
    done = tuple(file for file in files if file.key in known)
    if any(file.passages for file in done):
        (folder / UNFINISHED).mkdir(exist_ok=True)
        save_index(folder / UNFINISHED, _index_of(done, known), MODEL)


def _index_of(files: tuple[IndexedFile, ...], known: dict[str, Vectors]) -> PassageIndex:
    return PassageIndex(files, np.concatenate([known[file.key] for file in files]))


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
