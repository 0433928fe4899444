"""The index of a corpus on disk: generations, of which one is the current one.

    FOLDER/current                   {"format", "generation", "manifest"}: which generation counts
    (`manifest`) FOLDER/generations/00000007/     everything of one state of the index; nothing in it ever
    changes
        manifest.json                what made it, and size and SHA-256 of the files beside it
        passages.npy first_rows.npy texts.* headings.* files.*   the passages (`passage_table`)
        vectors.npy                  float32 [passages, dimensions], each row of length 1
        keys.npy                     uint8 [passages, 16]: by what text a vector was made (`chunk_keys`)
        nearest.faiss nearest.npy    what finds vectors, where not all are compared (`nearest`)
        terms.json starts.npy postings.npy counts.npy scores.npy     the lexical index (`lexical`)
    FOLDER/seen.msgpack              what the files of the corpus were when they were read (`seen_files`)
    FOLDER/unfinished.bin            vectors of an indexing that goes on (`unfinished`)
    FOLDER/lock                      held by the process that indexes

It holds the text of the documents: FOLDER and all that is in it are its owner's alone (`build`).

A generation is written under another name, made durable and renamed; then `current` is replaced in one step.
Whoever is killed in between has changed nothing that counts. Readers hold a shared lock on the manifest of
what they have open, so a generation is removed when the last of them has gone on to a newer one. All numbers
and lengths are compared with the files before they are used, and nothing is read that the checksums do not
cover. No pickle.

Formats: 1 had no generations; 2 no counts of terms, so that a change had all passages read; 3 is this one.
What is of another format is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch, InvalidRequest
from shared.files.atomic_write import NEW_PREFIX, sync
from shared.files.private_folder import keep_private, make_private_folder
from shared.retrieval.index.array_file import mapped_array
from shared.retrieval.index.lexical import LexicalIndex
from shared.retrieval.index.manifest import (
    KEYS_NAME,
    MANIFEST_NAME,
    VECTORS_NAME,
    CurrentPointer,
    Manifest,
    file_names,
    read_manifest,
    read_pointer,
    write_manifest,
    write_pointer,
)
from shared.retrieval.index.nearest import NearestVectors
from shared.retrieval.index.passage_index import PassageIndex
from shared.retrieval.index.passage_table import PassageTable
from shared.retrieval.index.words import WORDS_FORMAT

FORMAT_1_PATTERNS = ("passages.msgpack", "*.faiss", "unfinished/*")
"""The files of an earlier format: such an index is made anew."""
GENERATIONS_NAME = "generations"
OPEN_ATTEMPTS = 8
"""A generation may be replaced and removed between the reading of its name and its opening."""
KEY_BYTES = 16

ChunkKeys = npt.NDArray[np.uint8]
"""[passages, KEY_BYTES]"""


@dataclass(frozen=True, slots=True)
class Generation:
    """An open one: it stays on disk as long as its index is referred to.

    `digest` is that of its manifest, and so of everything in it: a folder that is wiped counts its
    generations from 1 again.
    """

    number: int
    digest: str
    manifest: Manifest
    index: PassageIndex
    keys: ChunkKeys


def chunk_keys(texts: list[str]) -> ChunkKeys:
    """Equal for equal texts alone."""
    digests = (hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:KEY_BYTES] for text in texts)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)


def open_generation(folder: Path, embedder: str, *, just_saved: bool = False) -> Generation | None:
    """The current one; None where there is none of this format. Raises ChecksumMismatch when it is damaged
    and InvalidRequest when another model made its vectors, or other rules its terms. The files of one that
    this process has `just_saved` are not read through once more."""
    for _ in range(OPEN_ATTEMPTS):
        pointer = read_pointer(folder)
        if pointer is None:
            return None
        generation = _generation_folder(folder, pointer.generation)
        hold = _hold(generation)
        if hold is None:
            if read_pointer(folder) == pointer:
                raise ChecksumMismatch(f"{generation} is gone")
            continue
        try:
            manifest = _usable_manifest(generation, pointer, embedder)
            if not just_saved:
                _check_files(generation, manifest)
            opened = _opened(generation, pointer, manifest)
        except BaseException:
            os.close(hold)
            raise
        weakref.finalize(opened.index, os.close, hold)
        return opened
    raise ChecksumMismatch(f"{folder} changes faster than it can be read")


def save_generation(
    folder: Path, index: PassageIndex, keys: ChunkKeys, *, embedder: str, content: str
) -> int:
    """Makes it the current one and removes those that nobody reads any more; its number. Only by the holder
    of the folder's lock. Raises OSError."""
    remove_unused(folder)
    generations = folder / GENERATIONS_NAME
    make_private_folder(generations)
    number = 1 + max((int(old.name) for old in generations.iterdir() if old.name.isdecimal()), default=0)
    new = generations / f"{NEW_PREFIX}{number}"
    make_private_folder(new)
    index.table.save(new)
    np.save(new / VECTORS_NAME, index.vectors, allow_pickle=False)
    np.save(new / KEYS_NAME, keys, allow_pickle=False)
    index.lexical.save(new)
    index.nearest.save(new)
    files = {
        name: ((new / name).stat().st_size, _digest(new / name)) for name in file_names(index.nearest.kind)
    }
    manifest = Manifest(embedder, WORDS_FORMAT, content, len(index), index.nearest.kind, files)
    digest = write_manifest(new, manifest)
    keep_private(new)
    for path in (*new.iterdir(), new):
        sync(path)
    new.rename(_generation_folder(folder, number))
    sync(generations)
    write_pointer(folder, CurrentPointer(number, digest))
    remove_unused(folder)
    return number


def remove_unused(folder: Path) -> None:
    """Remove what killed processes had begun to write, and generations that neither count nor are read. Only
    the holder of the folder's lock may."""
    for pattern in (NEW_PREFIX + "*", *FORMAT_1_PATTERNS):
        for begun in folder.glob(pattern):
            begun.unlink(missing_ok=True)
    for begun in folder.glob(f"{GENERATIONS_NAME}/{NEW_PREFIX}*"):
        shutil.rmtree(begun, ignore_errors=True)
    try:
        pointer = read_pointer(folder)
    except ChecksumMismatch:  # then no generation counts
        pointer = None
    for old in folder.glob(f"{GENERATIONS_NAME}/[0-9]*"):
        if pointer is None or old != _generation_folder(folder, pointer.generation):
            _remove_unread(old)


def _remove_unread(generation: Path) -> None:
    try:
        hold = os.open(generation / MANIFEST_NAME, os.O_RDONLY)
    except FileNotFoundError:
        shutil.rmtree(generation, ignore_errors=True)
        return
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(generation, ignore_errors=True)
    except BlockingIOError:
        pass  # somebody reads it
    finally:
        os.close(hold)


def _hold(generation: Path) -> int | None:
    """Keeps it from being removed as long as the descriptor is open; None when it has been."""
    try:
        hold = os.open(generation / MANIFEST_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(hold, fcntl.LOCK_SH)
    if os.fstat(hold).st_nlink:
        return hold
    os.close(hold)
    return None


def _usable_manifest(generation: Path, pointer: CurrentPointer, embedder: str) -> Manifest:
    manifest = read_manifest(generation, pointer.manifest)
    if manifest.embedder != embedder:
        raise InvalidRequest(
            f"the vectors in {generation} were made by another embedding model ({manifest.embedder[:80]}, "
            f"this is {embedder[:80]}); index the folder again"
        )
    if manifest.words != WORDS_FORMAT:
        raise InvalidRequest(f"the terms in {generation} were made by other rules; index the folder again")
    return manifest


def _check_files(generation: Path, manifest: Manifest) -> None:
    for name, (size, digest) in manifest.files.items():
        path = generation / name
        try:
            whole = path.stat().st_size == size and _digest(path) == digest
        except OSError as error:
            raise ChecksumMismatch(f"{path} cannot be read ({error.strerror})") from error
        if not whole:
            raise ChecksumMismatch(f"{path} has changed since it was written")


def _opened(generation: Path, pointer: CurrentPointer, manifest: Manifest) -> Generation:
    vectors = _mapped(generation / VECTORS_NAME, np.float32, manifest.passages)
    keys = _mapped(generation / KEYS_NAME, np.uint8, manifest.passages)
    table, lexical = PassageTable.load(generation), LexicalIndex.load(generation)
    if not len(table) == len(lexical) == manifest.passages or keys.shape[1] != KEY_BYTES:
        raise ChecksumMismatch(f"the files in {generation} do not belong together")
    nearest = NearestVectors.load(generation, manifest.nearest, vectors)
    index = PassageIndex(table, vectors, lexical, nearest)
    return Generation(pointer.generation, pointer.manifest, manifest, index, keys)


def _mapped(path: Path, dtype: type[np.generic], rows: int) -> npt.NDArray[Any]:
    array = mapped_array(path)
    if array.dtype != dtype or array.ndim != 2 or len(array) != rows:
        raise ChecksumMismatch(f"{path} does not hold what it should")
    return array


def _generation_folder(folder: Path, number: int) -> Path:
    return folder / GENERATIONS_NAME / f"{number:08}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
