"""Vectors that no model has made: the same for the same text, whatever is embedded beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from shared.retrieval.encoders.embedder import DIMENSIONS, Embedder
from shared.retrieval.encoders.vectors import Vectors


class HashedVectors:
    """Knows how many texts it was given."""

    def __init__(self) -> None:
        self.embedded = 0

    def as_embedder(self) -> Embedder:
        return cast(Embedder, self)

    def embed_passages(self, texts: Sequence[str], tell: Callable[[int], None]) -> Vectors:
        rows = [hashed_vector(text) for text in texts]
        self.embedded += len(rows)
        tell(len(rows))
        return np.array(rows, np.float32).reshape(-1, DIMENSIONS)


def hashed_vector(text: str) -> Vectors:
    """Return a vector of length 1 that is this text's alone."""
    seed = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(DIMENSIONS)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)
