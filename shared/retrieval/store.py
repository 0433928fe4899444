"""The index on disk: one file of vectors in faiss's format, one of passages in msgpack.

The passages name the file of vectors and its checksum, so replacing them is what makes a new index
valid: a reader sees the old index or the new one. Nothing is read that its checksum does not cover.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import faiss
import msgpack
import numpy as np

from shared.errors import ChecksumMismatch
from shared.retrieval.index import IndexedFile, PassageIndex
from shared.retrieval.passages import Passage

FORMAT = 1
PASSAGES_NAME = "passages.msgpack"
VECTORS_SUFFIX = ".faiss"
MAX_STORE_BYTES = 4 << 30
DIGEST_BYTES = 32
NEW_PREFIX = ".new-"
"""Of a file that is being written."""


def save_index(folder: Path, index: PassageIndex, embedder: str) -> None:
    """`embedder` names the model that made the vectors; another one's are of no use."""
    flat = faiss.IndexFlatIP(index.vectors.shape[1])
    flat.add(index.vectors)
    vectors = faiss.serialize_index(flat).tobytes()
    digest = hashlib.sha256(vectors).digest()
    vectors_name = digest.hex()[:16] + VECTORS_SUFFIX
    body = msgpack.packb(
        {
            "format": FORMAT,
            "embedder": embedder,
            "vectors": vectors_name,
            "digest": digest,
            "files": [
                [file.name, file.key, [[passage.heading, passage.text] for passage in file.passages]]
                for file in index.files
            ],
        }
    )
    _replace(folder / vectors_name, vectors)
    _replace(folder / PASSAGES_NAME, hashlib.sha256(body).digest() + body)
    for old in folder.glob("*" + VECTORS_SUFFIX):
        if old.name != vectors_name:
            old.unlink(missing_ok=True)


def clear_unfinished_files(folder: Path) -> None:
    """What processes that were killed had begun to write."""
    for file in folder.glob(NEW_PREFIX + "*"):
        file.unlink(missing_ok=True)


def load_index(folder: Path, embedder: str) -> PassageIndex | None:
    """None when there is none of this format and embedder; ChecksumMismatch when it is damaged."""
    try:
        body = _checked(_read(folder / PASSAGES_NAME))
    except FileNotFoundError:
        return None
    store = msgpack.unpackb(body)
    if store["format"] != FORMAT or store["embedder"] != embedder:
        return None
    try:
        vectors = _read(folder / store["vectors"])
    except FileNotFoundError as error:
        raise ChecksumMismatch(f"{folder} has no file {store['vectors']}") from error
    if hashlib.sha256(vectors).digest() != store["digest"]:
        raise ChecksumMismatch(f"{folder / store['vectors']} has changed since it was written")
    flat = faiss.deserialize_index(np.frombuffer(vectors, dtype=np.uint8))
    return PassageIndex(_files(store["files"]), flat.reconstruct_n(0, flat.ntotal))


def _files(rows: list[Any]) -> tuple[IndexedFile, ...]:
    return tuple(
        IndexedFile(name, key, tuple(Passage(heading, text) for heading, text in passages))
        for name, key, passages in rows
    )


def _checked(data: bytes) -> bytes:
    digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ChecksumMismatch(f"{PASSAGES_NAME} has changed since it was written")
    return body


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_STORE_BYTES:
        raise ChecksumMismatch(f"{path} is longer than any index")
    return path.read_bytes()


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=NEW_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
