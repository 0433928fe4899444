"""The index of a folder: opened, brought up to date, or made anew."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog

from shared.errors import ChecksumMismatch, InvalidRequest, NotFound, TooLarge
from shared.files.private_folder import keep_private, make_private_folder
from shared.retrieval.documents.seen_files import read_seen, save_seen
from shared.retrieval.encoders.embedder import DIMENSIONS, MAX_TOKENS, Embedder
from shared.retrieval.encoders.model_files import SHA256, WEIGHTS
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.change import Change
from shared.retrieval.index.manifest import FORMAT, other_format
from shared.retrieval.index.passage_index import PassageIndex
from shared.retrieval.index.passage_table import PassageTable
from shared.retrieval.index.reading import SPLITTER, read_corpus
from shared.retrieval.index.reading_progress import ReadingProgress
from shared.retrieval.index.store import Generation, open_generation, remove_unused, save_generation
from shared.retrieval.index.unfinished import UnfinishedVectors

log = structlog.get_logger()

MAX_PASSAGES = 1_000_000
"""1.5 GB of vectors."""

MODEL = f"{SHA256[WEIGHTS]}/{MAX_TOKENS}"
"""The model that made the vectors: other weights or another length make others."""
RULES = f"{FORMAT}/{SPLITTER}"
"""The rules of reading: a file that was read by others is read again."""

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
    numbers the states of the index: the same one, if nothing has changed; `digest` says what is in it."""

    index: PassageIndex
    folder: Path
    generation: int
    digest: str
    embedded: int
    skipped: tuple[tuple[str, str], ...]


def index_folder(state_dir: Path, corpus: str) -> Path:
    """Return where the index of `corpus` is kept."""
    name = hashlib.sha256(str(Path(corpus).absolute()).encode()).hexdigest()[:12]
    return state_dir / f"index-{name}"


def build_index(
    corpus: str,
    state_dir: Path,
    embedder: Embedder,
    progress: IndexProgress,
    *,
    waiting: Waiting,
    reading: ReadingProgress = lambda _: None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Built:
    """Reads and embeds what is new or changed since the last time, and keeps the result. By `clock_ns` a file
    that was written just before it was read is read once more the next time.

    One that was interrupted has left the old index as it was, and goes on with what it had kept. One process
    at a time per corpus; others tell `waiting` and wait. Raises NotFound, TooLarge (see corpus) and
    InvalidRequest when `state_dir` cannot be written. What `reading` and `progress` raise interrupts.
    """
    folder = index_folder(state_dir, corpus)
    try:
        make_private_folder(folder)
        with _locked(folder, waiting):
            keep_private(folder)  # also what was made when this was not so
            try:
                return _build(corpus, folder, embedder, progress, reading, clock_ns)
            finally:
                keep_private(folder)
    except OSError as error:
        raise InvalidRequest(
            f"the index cannot be kept in {folder}: {error.strerror or error}; use another --state-dir"
        ) from error


def _build(
    corpus: str,
    folder: Path,
    embedder: Embedder,
    progress: IndexProgress,
    tell_reading: ReadingProgress,
    clock_ns: Callable[[], int],
) -> Built:
    old = _old_generation(folder)
    remove_unused(folder)
    before = old.index.table if old else PassageTable.of_files(())
    seen = read_seen(folder, RULES, old.manifest.content) if old else []
    reading = read_corpus(corpus, before, seen, clock_ns, tell_reading)
    table = reading.table
    content = table.files.digest()
    if old is not None and old.manifest.content == content:
        if reading.seen != seen:
            save_seen(folder, RULES, content, reading.seen)
        return Built(old.index, folder, old.number, old.digest, 0, reading.skipped)
    if len(table) > MAX_PASSAGES:
        raise TooLarge(
            f"the folder makes {len(table)} passages, more than {MAX_PASSAGES}; index a smaller one"
        )
    if not len(table):
        raise NotFound("the folder's documents have no text; name a folder that has some")
    unfinished = UnfinishedVectors(folder, MODEL, DIMENSIONS)
    change = Change.of(table, reading.origin, old)
    vectors, missing = change.known_vectors(unfinished.read(), DIMENSIONS)
    _embed_missing(change, vectors, missing, embedder, unfinished, progress)
    index = change.index(vectors)
    save_generation(folder, index, change.keys, embedder=MODEL, content=content)
    save_seen(folder, RULES, content, reading.seen)
    unfinished.remove()
    saved = open_generation(folder, MODEL, just_saved=True)
    assert saved is not None, "it has just been saved, under the lock"
    return Built(saved.index, folder, saved.number, saved.digest, len(missing), reading.skipped)


def _embed_missing(
    change: Change,
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

        vectors[rows] = embedder.embed_passages([change.texts[row] for row in rows], tell)
        unfinished.append(change.keys[rows], vectors[rows])
    first = {change.keys[row].tobytes(): row for row in missing}
    for row in change.texts:
        same = first.get(change.keys[row].tobytes(), row)
        if same != row:
            vectors[row] = vectors[same]


def _old_generation(folder: Path) -> Generation | None:
    """Return what there is; nothing when it is damaged or made by other rules."""
    try:
        other, generation = other_format(folder), open_generation(folder, MODEL)
    except (ChecksumMismatch, InvalidRequest) as error:
        _warn_of_unusable(folder, error.message)
        return None
    if other is not None:
        _warn_of_unusable(folder, f"its format is {other}, and that of this version {FORMAT}")
    return generation


def _warn_of_unusable(folder: Path, error: str) -> None:
    log.warning("index_unusable", folder=str(folder), error=error, action="it is made anew")


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
    """Return who has said to hold it; nobody has just after it was taken."""
    lock.seek(0)
    text = lock.read(MAX_PID_CHARS)
    return int(text) if text.isdecimal() else 0


__all__ = ["DIMENSIONS", "Built", "build_index", "index_folder"]
