"""The target's hidden states at its own answers, out of the files of `taught_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from shared.errors import InvalidRequest
from shared.training.taught_rows import load_rows


@dataclass(frozen=True, slots=True)
class TappedSegment:
    """n generated tokens of one row, one behind the other, and the states that they were drawn from."""

    taps: Tensor  # bfloat16 [n, 3, D]
    tokens: Tensor  # int64 [n]
    temperature: float


class TappedRows:
    """The rows of one file; taps are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidRequest for a file that is not whole."""
        self._path = path
        rows, _ = load_rows(path)
        self.tokens = torch.cat([row.ids[row.prompt_tokens :] for row in rows]).long()
        self._ends = torch.tensor([len(row.ids) - row.prompt_tokens for row in rows]).cumsum(0)
        self._temperatures = [row.temperature for row in rows]
        self._file: Any = safe_open(path, framework="pt")  # a class without types
        if self._num_taps() != self.num_tokens:
            raise InvalidRequest(f"{path} is damaged, states are missing; remove it, it is made again")

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        return len(self._ends)

    def row(self, number: int) -> range:
        """Return the places of one row's tokens."""
        return range(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def _num_taps(self) -> int:
        names = set(self._file.keys())
        return int(self._file.get_slice("taps").get_shape()[0]) if "taps" in names else 0

    def segment(self, first: int, most_tokens: int) -> TappedSegment:
        """Return up to `most_tokens` tokens from place `first` on, of the row that it is in."""
        number = int(torch.searchsorted(self._ends, first, right=True))
        end = min(first + most_tokens, int(self._ends[number]))
        taps = self._file.get_slice("taps")[first:end]
        return TappedSegment(taps, self.tokens[first:end], self._temperatures[number])


def frequent_ids(rows: Sequence[TappedRows], count: int, vocabulary: int, special: Sequence[int]) -> Tensor:
    """int32 [count]: the most frequent of the generated tokens and all `special` ones, ascending.

    Where fewer were generated, the lowest others fill up: byte-pair vocabularies have frequent ones first.
    """
    seen = torch.zeros(vocabulary, dtype=torch.float64)
    for each in rows:
        seen += torch.bincount(each.tokens, minlength=vocabulary)
    seen += 0.5 - torch.arange(vocabulary) / (2 * vocabulary)
    seen[list(special)] = torch.inf
    return seen.topk(count).indices.sort().values.int()
