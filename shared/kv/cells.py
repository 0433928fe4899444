"""The state of every (layer, block) cell of a transfer, one byte each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """The cells of blocks [first, end) in one layer; blocks are counted from the request's first."""

    layer: int
    first: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first


class CellMap:
    """States of layers [0, num_layers) x blocks [first, end); all cells start in state 0."""

    def __init__(self, num_layers: int, first: int, end: int) -> None:
        self.num_layers = num_layers
        self.first = first
        self.end = end
        self._width = end - first
        self._states = bytearray(num_layers * self._width)

    def holds(self, run: Run) -> bool:
        return 0 <= run.layer < self.num_layers and self.first <= run.first < run.end <= self.end

    def clip(self, run: Run) -> Run:
        """The part of `run` that is in this map; it may be empty (count <= 0)."""
        return Run(run.layer, max(run.first, self.first), min(run.end, self.end))

    def set(self, run: Run, state: int) -> None:
        start = run.layer * self._width + run.first - self.first
        self._states[start : start + run.count] = bytes((state,)) * run.count

    def count(self, state: int) -> int:
        return self._states.count(state)

    def runs(self, state: int, within: Run) -> Iterator[Run]:
        """The maximal runs of cells of `within` that are in `state`."""
        row = within.layer * self._width - self.first
        for found in _pattern(state).finditer(self._states, row + within.first, row + within.end):
            yield Run(within.layer, found.start() - row, found.end() - row)

    def all_runs(self, state: int) -> Iterator[Run]:
        for layer in range(self.num_layers):
            yield from self.runs(state, Run(layer, self.first, self.end))

    def indices(self, state: int, limit: int) -> tuple[int, ...]:
        """The first `limit` cells in `state`, as layer * num_blocks + (block - first)."""
        found: list[int] = []
        for run in self.all_runs(state):
            start = run.layer * self._width + run.first - self.first
            found.extend(range(start, start + min(run.count, limit - len(found))))
            if len(found) == limit:
                break
        return tuple(found)

    def runs_of(self, indices: Iterable[int]) -> Iterator[Run]:
        """The inverse of `indices`; those outside of the map are left out."""
        size = len(self._states)
        for index in indices:
            if 0 <= index < size:
                layer, column = divmod(index, self._width)
                yield Run(layer, self.first + column, self.first + column + 1)


_PATTERNS: dict[int, re.Pattern[bytes]] = {}


def _pattern(state: int) -> re.Pattern[bytes]:
    if state not in _PATTERNS:
        _PATTERNS[state] = re.compile(b"[\\x%02x]+" % state)
    return _PATTERNS[state]
