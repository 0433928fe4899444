"""Find which passages of an index filters let through: an array for each set of filters, kept for later
ones."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from shared.messages import Filters
from shared.retrieval.documents.metadata import PLACE_FIELDS, all_values
from shared.retrieval.index.lexical import Allowed
from shared.retrieval.index.passage_table import PassageTable

MAX_KEPT_FIELDS = 16
"""Most fields, those filtered by lately, that are kept: 8 bytes for each document, and their values."""
MAX_MASK_BYTES = 16 << 20
"""Most bytes of masks that are kept, a byte for each passage; one is kept in any case."""


@dataclass(frozen=True, slots=True)
class FieldValues:
    """Document files[i] has the value of number values[i]; `numbers` has that of each value."""

    files: npt.NDArray[np.int32]
    values: npt.NDArray[np.int32]
    numbers: dict[str, int]


class MetadataMasks:
    """The masks of the passages that filters allow, in one generation, which does not change. Any thread may
    ask."""

    def __init__(self, table: PassageTable) -> None:
        """Nothing is looked at before the first filter."""
        self._table = table
        self._counts: npt.NDArray[np.int64] | None = None
        self._names: frozenset[str] = frozenset()
        self._fields: LRUCache[str, FieldValues] = LRUCache(MAX_KEPT_FIELDS)
        self._masks: LRUCache[Filters, Allowed] = LRUCache(max(1, MAX_MASK_BYTES // max(1, len(table))))
        self._lock = threading.Lock()

    def allowed(self, filters: Filters) -> Allowed | None:
        """[passages]: whether each may be found; None without filters: all of them."""
        if not filters:
            return None
        with self._lock:
            mask = self._masks.get(filters)
            if mask is None:
                mask = self._masks[filters] = self._mask(filters)
            return mask

    def unknown_fields(self, filters: Filters) -> list[str]:
        """Return those that no document has."""
        if not filters:
            return []
        with self._lock:
            self._counts_of_documents()
            return [field for field, _ in filters if field not in self._names]

    def _mask(self, filters: Filters) -> Allowed:
        counts = self._counts_of_documents()
        files = np.ones(len(counts), np.bool_)
        for field, values in filters:
            of_field = np.zeros(len(counts), np.bool_)
            if field in self._names:
                has = self._values_of(field)
                wanted = [has.numbers[value] for value in values if value in has.numbers]
                of_field[has.files[np.isin(has.values, wanted)]] = True
            files &= of_field
        return np.repeat(files, counts)

    def _counts_of_documents(self) -> npt.NDArray[np.int64]:
        """Return how many passages each document has."""
        if self._counts is None:
            names: set[str] = set()
            for file in self._table.files:
                names.update(field for field, _ in file.metadata)
                if not names >= PLACE_FIELDS:
                    names.update(field for field, _ in all_values(file.name, ()))
            self._names = frozenset(names)
            self._counts = np.diff(self._table.files.first_rows, append=len(self._table))
        return self._counts

    def _values_of(self, field: str) -> FieldValues:
        found = self._fields.get(field)
        if found is None:
            numbers: dict[str, int] = {}
            is_of_place = field in PLACE_FIELDS
            pairs = [
                (number, numbers.setdefault(value, len(numbers)))
                for number, file in enumerate(self._table.files)
                for name, value in (all_values(file.name, file.metadata) if is_of_place else file.metadata)
                if name == field
            ]
            columns = np.array(pairs, np.int32).reshape(-1, 2)
            found = self._fields[field] = FieldValues(columns[:, 0].copy(), columns[:, 1].copy(), numbers)
        return found
