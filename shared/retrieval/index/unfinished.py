"""The vectors of an indexing that goes on, kept as they come: one that is killed goes on where it was.

A file: SHA-256 of the embedder's name, then frames of a count (u32), a digest (16 bytes), keys and vectors. A
frame that is cut off or damaged ends what is read, and is written over.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np

from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.store import KEY_BYTES, ChunkKeys

UNFINISHED_NAME = "unfinished.bin"
MAX_FRAME_VECTORS = 1 << 16
"""The most vectors of a frame; a larger count ends what is read."""
_FRAME = struct.Struct("<I16s")


class UnfinishedVectors:
    """Used by the holder of the folder's lock alone."""

    def __init__(self, folder: Path, embedder: str, dimensions: int) -> None:
        self._path = folder / UNFINISHED_NAME
        self._head = hashlib.sha256(f"{embedder}/{dimensions}".encode()).digest()
        self._dimensions = dimensions
        self._end = 0

    def read(self) -> list[tuple[ChunkKeys, Vectors]]:
        """Read all whole frames."""
        frames: list[tuple[ChunkKeys, Vectors]] = []
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return frames
        with file:
            if file.read(len(self._head)) != self._head:
                return frames
            self._end = file.tell()
            while (header := file.read(_FRAME.size)) and len(header) == _FRAME.size:
                count, digest = _FRAME.unpack(header)
                if count > MAX_FRAME_VECTORS:
                    break
                body = file.read(count * (KEY_BYTES + 4 * self._dimensions))
                if _digest_of(body) != digest:
                    break
                keys = np.frombuffer(body, np.uint8, count * KEY_BYTES).reshape(count, KEY_BYTES)
                vectors = np.frombuffer(body, np.float32, offset=count * KEY_BYTES)
                frames.append((keys, vectors.reshape(count, self._dimensions)))
                self._end = file.tell()
        return frames

    def append(self, keys: ChunkKeys, vectors: Vectors) -> None:
        """A frame, after the whole ones."""
        body = keys.tobytes() + vectors.tobytes()
        with self._path.open("r+b" if self._end else "wb") as file:
            if not self._end:
                file.write(self._head)
            else:
                file.truncate(self._end)
                file.seek(self._end)
            file.write(_FRAME.pack(len(keys), _digest_of(body)) + body)
            self._end = file.tell()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        self._end = 0


def _digest_of(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
