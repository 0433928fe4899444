"""The state of every (layer, block) cell of a transfer, one byte each."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


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
    """States of blocks [firsts[layer], end) of every layer; all cells start in state 0.

    Cells are numbered layer by layer.
    """

    def __init__(self, firsts: Sequence[int], end: int) -> None:
        self.num_layers = len(firsts)
        self.end = end
        self._firsts = firsts
        self._starts = [0, *accumulate(end - first for first in firsts)]  # number of a layer's first cell
        self._states = bytearray(self._starts[-1])

    @property
    def size(self) -> int:
        return len(self._states)

    def holds(self, run: Run) -> bool:
        inside = 0 <= run.layer < self.num_layers and run.first < run.end <= self.end
        return inside and self._firsts[run.layer] <= run.first

    def clip(self, run: Run) -> Run:
        """The part of `run` that is in this map; it may be empty (count <= 0)."""
        return Run(run.layer, max(run.first, self._firsts[run.layer]), min(run.end, self.end))

    def set(self, run: Run, state: int) -> None:
        numbers = self.numbers(run)
        self._states[numbers.start : numbers.stop] = bytes((state,)) * run.count

    def count(self, state: int) -> int:
        return self._states.count(state)

    def runs(self, state: int, within: Run) -> Iterator[Run]:
        """The maximal runs of cells of `within` that are in `state`."""
        numbers, row = self.numbers(within), self._row(within.layer)
        for found in _pattern(state).finditer(self._states, numbers.start, numbers.stop):
            yield Run(within.layer, found.start() - row, found.end() - row)

    def all_runs(self, state: int) -> Iterator[Run]:
        for layer, first in enumerate(self._firsts):
            yield from self.runs(state, Run(layer, first, self.end))

    def numbers(self, run: Run) -> range:
        """Return the numbers of its cells that are in this map."""
        row = self._row(run.layer)
        return range(row + run.first, row + run.end)

    def indices(self, state: int, limit: int) -> tuple[int, ...]:
        """The numbers of the first `limit` cells in `state`."""
        found: list[int] = []
        for run in self.all_runs(state):
            found += self.numbers(run)[: limit - len(found)]
            if len(found) == limit:
                break
        return tuple(found)

    def runs_of(self, numbers: Iterable[int]) -> Iterator[Run]:
        """The inverse of `indices`; those outside of the map are left out."""
        for number in numbers:
            if 0 <= number < self.size:
                layer = bisect_right(self._starts, number) - 1
                block = number - self._row(layer)
                yield Run(layer, block, block + 1)

    def _row(self, layer: int) -> int:
        """Return where the number of the layer's block 0 is, or would be."""
        return self._starts[layer] - self._firsts[layer]


_PATTERNS: dict[int, re.Pattern[bytes]] = {}


def _pattern(state: int) -> re.Pattern[bytes]:
    if state not in _PATTERNS:
        _PATTERNS[state] = re.compile(b"[\\x%02x]+" % state)
    return _PATTERNS[state]
