"""The index of a corpus on disk: generations, of which one is the current one.

    FOLDER/current                   {"format", "generation", "manifest"}: which generation counts
    FOLDER/generations/00000007/     everything of one state of the index; nothing in it ever changes
        manifest.json                what made it, and size and SHA-256 of the files beside it
        files.msgpack passages.npy texts.bin                 the passages (`passage_table`)
        vectors.npy                  float32 [passages, dimensions], each row of length 1
        keys.npy                     uint8 [passages, 16]: by what text a vector was made (`chunk_keys`)
        nearest.faiss                what finds vectors, where not all are compared (`nearest`)
        terms.json scores.npy postings.npy starts.npy        the lexical index (`lexical`)
    FOLDER/unfinished.bin            vectors of an indexing that goes on (`unfinished`)
    FOLDER/lock                      held by the process that indexes

A generation is written under another name, made durable and renamed; then `current` is replaced in one step.
Whoever is killed in between has changed nothing that counts. Readers hold a shared lock on the manifest of
what they have open, so a generation is removed when the last of them has gone on to a newer one. All numbers
and lengths are compared with the files before they are used, and nothing is read that the checksums do not
cover. No pickle.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch, InvalidRequest
from shared.retrieval.index import PassageIndex
from shared.retrieval.lexical import LEXICAL_NAMES, LexicalIndex
from shared.retrieval.nearest import FLAT, KINDS, NEAREST_NAME, NearestVectors
from shared.retrieval.passage_table import TABLE_NAMES, PassageTable
from shared.retrieval.words import WORDS_FORMAT

FORMAT = 2
FORMAT_1_PATTERNS = ("passages.msgpack", "*.faiss", "unfinished/*")
"""What an index was before: it is made anew."""
POINTER_NAME = "current"
GENERATIONS_NAME = "generations"
MANIFEST_NAME = "manifest.json"
VECTORS_NAME = "vectors.npy"
KEYS_NAME = "keys.npy"
FILE_NAMES = (*TABLE_NAMES, VECTORS_NAME, KEYS_NAME, *LEXICAL_NAMES)
MAX_MANIFEST_BYTES = 1 << 16
NEW_PREFIX = ".new-"
"""Of what is being written."""
OPEN_ATTEMPTS = 8
"""A generation may be replaced and removed between the reading of its name and its opening."""
KEY_BYTES = 16

ChunkKeys = npt.NDArray[np.uint8]
"""[passages, KEY_BYTES]"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What made a generation: the model of its vectors, the rules of its terms, and `content`, a digest of
    all documents and the rules by which they were cut."""

    embedder: str
    words: str
    content: str
    passages: int
    nearest: str
    files: dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Generation:
    """An open one: it stays on disk as long as its index is referred to."""

    number: int
    manifest: Manifest
    index: PassageIndex
    keys: ChunkKeys


def file_names(nearest: str) -> tuple[str, ...]:
    """Of a generation, beside its manifest, by the kind of its nearest vectors."""
    return FILE_NAMES if nearest == FLAT else (*FILE_NAMES, NEAREST_NAME)


def chunk_keys(texts: list[str]) -> ChunkKeys:
    """Equal for equal texts alone."""
    digests = (hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:KEY_BYTES] for text in texts)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)


def current_generation(folder: Path) -> int:
    """Its number; 0 where there is none of this format. Raises ChecksumMismatch when `current` is damaged."""
    pointer = _pointer(folder)
    return 0 if pointer is None else pointer[0]


def open_generation(folder: Path, embedder: str) -> Generation | None:
    """The current one; None where there is none of this format. Raises ChecksumMismatch when it is damaged
    and InvalidRequest when another model made its vectors, or other rules its terms."""
    for _ in range(OPEN_ATTEMPTS):
        pointer = _pointer(folder)
        if pointer is None:
            return None
        generation = _generation_folder(folder, pointer[0])
        hold = _hold(generation)
        if hold is None:
            if _pointer(folder) == pointer:
                raise ChecksumMismatch(f"{generation} is gone")
            continue
        try:
            opened = _opened(generation, pointer, embedder)
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
    generations.mkdir(exist_ok=True)
    number = 1 + max((int(old.name) for old in generations.iterdir() if old.name.isdecimal()), default=0)
    new = generations / f"{NEW_PREFIX}{number}"
    new.mkdir()
    index.table.save(new)
    np.save(new / VECTORS_NAME, index.vectors, allow_pickle=False)
    np.save(new / KEYS_NAME, keys, allow_pickle=False)
    index.lexical.save(new)
    index.nearest.save(new)
    files = {
        name: ((new / name).stat().st_size, _digest(new / name)) for name in file_names(index.nearest.kind)
    }
    manifest = Manifest(embedder, WORDS_FORMAT, content, len(index), index.nearest.kind, files)
    told = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
    (new / MANIFEST_NAME).write_bytes(told)
    for path in (*new.iterdir(), new):
        _sync(path)
    new.rename(_generation_folder(folder, number))
    _sync(generations)
    pointer = {"format": FORMAT, "generation": number, "manifest": hashlib.sha256(told).hexdigest()}
    _replace(folder / POINTER_NAME, json.dumps(pointer).encode())
    remove_unused(folder)
    return number


def remove_unused(folder: Path) -> None:
    """What processes that were killed had begun to write, and generations that neither count nor are read.
    Only by the holder of the folder's lock."""
    for pattern in (NEW_PREFIX + "*", *FORMAT_1_PATTERNS):
        for begun in folder.glob(pattern):
            begun.unlink(missing_ok=True)
    for begun in folder.glob(f"{GENERATIONS_NAME}/{NEW_PREFIX}*"):
        shutil.rmtree(begun, ignore_errors=True)
    try:
        pointer = _pointer(folder)
    except ChecksumMismatch:  # then no generation counts
        pointer = None
    for old in folder.glob(f"{GENERATIONS_NAME}/[0-9]*"):
        if pointer is None or old != _generation_folder(folder, pointer[0]):
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


def _opened(generation: Path, pointer: tuple[int, str], embedder: str) -> Generation:
    manifest = _manifest(generation, pointer[1])
    if manifest.embedder != embedder:
        raise InvalidRequest(
            f"the vectors in {generation} were made by another embedding model ({manifest.embedder[:80]}, "
            f"this is {embedder[:80]}); index the folder again"
        )
    if manifest.words != WORDS_FORMAT:
        raise InvalidRequest(f"the terms in {generation} were made by other rules; index the folder again")
    for name, (size, digest) in manifest.files.items():
        path = generation / name
        try:
            whole = path.stat().st_size == size and _digest(path) == digest
        except OSError as error:
            raise ChecksumMismatch(f"{path} cannot be read ({error.strerror})") from error
        if not whole:
            raise ChecksumMismatch(f"{path} has changed since it was written")
    vectors = _mapped(generation / VECTORS_NAME, np.float32, manifest.passages)
    keys = _mapped(generation / KEYS_NAME, np.uint8, manifest.passages)
    table, lexical = PassageTable.load(generation), LexicalIndex.load(generation)
    if not len(table) == len(lexical) == manifest.passages or keys.shape[1] != KEY_BYTES:
        raise ChecksumMismatch(f"the files in {generation} do not belong together")
    nearest = NearestVectors.load(generation, manifest.nearest, vectors)
    return Generation(pointer[0], manifest, PassageIndex(table, vectors, lexical, nearest), keys)


def _mapped(path: Path, dtype: type[np.generic], rows: int) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ChecksumMismatch(f"{path} cannot be read ({error})") from error
    if array.dtype != dtype or array.ndim != 2 or len(array) != rows:
        raise ChecksumMismatch(f"{path} does not hold what it should")
    return array


def _manifest(generation: Path, digest: str) -> Manifest:
    try:
        data = _read_small(generation / MANIFEST_NAME)
        if hashlib.sha256(data).hexdigest() != digest:
            raise ChecksumMismatch(f"{generation / MANIFEST_NAME} has changed since it was written")
        values = json.loads(data)
        files = {name: (int(size), str(sha256)) for name, (size, sha256) in values["files"].items()}
        told = {name: values[name] for name in ("embedder", "words", "content", "passages", "nearest")}
        manifest = Manifest(**told, files=files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChecksumMismatch(f"{generation / MANIFEST_NAME} cannot be read ({error})") from error
    if manifest.nearest not in KINDS or set(manifest.files) != set(file_names(manifest.nearest)):
        raise ChecksumMismatch(f"{generation} does not hold the files of an index")
    return manifest


def _pointer(folder: Path) -> tuple[int, str] | None:
    """(number, digest of the manifest) of the current generation; None without one of this format."""
    path = folder / POINTER_NAME
    try:
        values = json.loads(_read_small(path))
        if values["format"] != FORMAT:
            return None
        return int(values["generation"]), str(values["manifest"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChecksumMismatch(f"{path} cannot be read ({error})") from error


def _generation_folder(folder: Path, number: int) -> Path:
    return folder / GENERATIONS_NAME / f"{number:08}"


def _read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it is longer than {MAX_MANIFEST_BYTES} bytes")
    return data


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{NEW_PREFIX}{os.getpid()}")  # no mkstemp, whose files are for their owner alone
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    _sync(path.parent)
