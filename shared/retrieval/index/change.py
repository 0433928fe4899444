"""Lead from one state of an index to the next: what of it stays, and what is to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.passage_index import PassageIndex
from shared.retrieval.index.passage_table import PassageTable
from shared.retrieval.index.store import KEY_BYTES, ChunkKeys, Generation, chunk_keys
from shared.retrieval.index.term_counts import Rows


@dataclass(frozen=True, slots=True)
class Change:
    """The change from one generation to the passages of `table`. `origin` [passages]: which row of `old` each
    one is, no two the same, -1 for one that is new. `texts`: those of the passages that were cut anew, by
    their rows."""

    table: PassageTable
    old: Generation | None
    origin: Rows
    keys: ChunkKeys
    texts: dict[int, str]

    @classmethod
    def of(cls, table: PassageTable, origin: Rows, old: Generation | None) -> Self:
        """`origin` knows of passages whose documents have stayed as they were; of the others, those that are
        in `old` with the same text are found by their keys."""
        cut = np.flatnonzero(origin < 0).tolist()
        texts = {row: table.passage(row).embedded_text for row in cut}
        keys = np.zeros((len(table), KEY_BYTES), np.uint8)
        keys[cut] = chunk_keys(list(texts.values()))
        if old is not None:
            stayed = np.flatnonzero(origin >= 0)
            keys[stayed] = old.keys[origin[stayed]]
            gone = _rows_by_key(old.keys, np.setdiff1d(np.arange(len(old.keys)), origin))
            origin = origin.copy()
            for row in cut:
                if rows := gone.get(keys[row].tobytes()):
                    origin[row] = rows.pop()
        return cls(table, old, origin, keys, texts)

    def known_vectors(
        self, kept: Sequence[tuple[ChunkKeys, Vectors]], dimensions: int
    ) -> tuple[Vectors, list[int]]:
        """The vectors [passages, dimensions] that there are already, in `old` or among those that were
        `kept`; and of those that there are not, the first row of each different text, in order."""
        vectors = np.zeros((len(self.table), dimensions), np.float32)
        sources = list(kept)
        if self.old is not None:
            stayed = np.flatnonzero(self.origin >= 0)
            vectors[stayed] = self.old.index.vectors[self.origin[stayed]]
            sources.append((self.old.keys, self.old.index.vectors))
        rows = np.flatnonzero(self.origin < 0)
        for keys, known in sources:
            found = _find(self.keys[rows], keys)
            vectors[rows[found >= 0]] = known[found[found >= 0]]
            rows = rows[found < 0]
        missing: dict[bytes, int] = {}
        for row in rows.tolist():
            missing.setdefault(self.keys[row].tobytes(), row)
        return vectors, list(missing.values())

    def index(self, vectors: Vectors) -> PassageIndex:
        """Build the index of the passages with these vectors: terms of those that stay are not counted again,
        and what finds vectors takes in those that are new."""
        if self.old is None:
            return PassageIndex(self.table, vectors)
        new_texts = (text for row, text in self.texts.items() if self.origin[row] < 0)
        was = self.old.index
        return PassageIndex(
            self.table,
            vectors,
            was.lexical.updated(self.origin, new_texts),
            was.nearest.updated(self.origin, vectors),
        )


def _rows_by_key(keys: ChunkKeys, rows: Rows) -> dict[bytes, list[int]]:
    """The last ones first."""
    by_key: dict[bytes, list[int]] = {}
    for row in rows[::-1].tolist():
        by_key.setdefault(keys[row].tobytes(), []).append(row)
    return by_key


def _find(wanted: ChunkKeys, keys: ChunkKeys) -> Rows:
    """[wanted]: a row of `keys` with that key, -1 where there is none."""
    if not len(wanted) or not len(keys):
        return np.full(len(wanted), -1, np.int64)
    heads = keys.view(np.uint64)[:, 0]
    order = np.argsort(heads)
    places = np.searchsorted(heads[order], wanted.view(np.uint64)[:, 0])
    rows: Rows = order[np.minimum(places, len(order) - 1)]
    return np.where((keys[rows] == wanted).all(axis=1), rows, -1)
