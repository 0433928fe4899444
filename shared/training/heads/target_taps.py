"""The target's hidden states at its own answers, in files that are whole or absent.

One file belongs to one file of rows. With M generated tokens in all its rows:

    taps [M, 3, D] bfloat16: after the tapped layers, at the position before each generated token
    tokens [M] int32: the generated tokens
    ends [R] int64: where each row's tokens end, of the M
    temperatures [R] float32
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from shared.errors import InvalidRequest
from shared.training.llama import Llama
from shared.training.taught_rows import TaughtRow
from shared.training.tensor_file import write_tensors

ROWS_AT_ONCE = 4


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
        try:
            with safe_open(path, framework="pt") as file:
                self.tokens = file.get_tensor("tokens").long()
                self._ends = file.get_tensor("ends")
                self._temperatures = file.get_tensor("temperatures").tolist()
            self._file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(f"{path} is damaged ({error}); remove it, it is made again") from error

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

    def segment(self, first: int, most_tokens: int) -> TappedSegment:
        """Return up to `most_tokens` tokens from place `first` on, of the row that it is in."""
        number = int(torch.searchsorted(self._ends, first, right=True))
        end = min(first + most_tokens, int(self._ends[number]))
        taps = self._file.get_slice("taps")[first:end]
        return TappedSegment(taps, self.tokens[first:end], self._temperatures[number])


@torch.no_grad()
def tap_rows(target: Llama, rows: Sequence[TaughtRow], layers: Sequence[int], path: Path) -> None:
    """Have the target read its rows, and write its states to `path`.

    On CPUs a target in bfloat16 is several times as fast.
    """
    by_length = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
    taken: dict[int, Tensor] = {}
    for first in range(0, len(by_length), ROWS_AT_ONCE):
        numbers = by_length[first : first + ROWS_AT_ONCE]
        longest = len(rows[numbers[-1]].ids)
        ids = torch.stack(
            [functional.pad(rows[number].ids, (0, longest - len(rows[number].ids))) for number in numbers]
        )
        states = target.model.states_after(ids, layers)
        for number, state in zip(numbers, states, strict=True):
            row = rows[number]
            taken[number] = state[row.prompt_tokens - 1 : len(row.ids) - 1].bfloat16()
    tensors = {
        "taps": torch.cat([taken[number] for number in range(len(rows))]),
        "tokens": torch.cat([row.ids[row.prompt_tokens :] for row in rows]),
        "ends": torch.tensor([len(row.top_ids) for row in rows]).cumsum(0),
        "temperatures": torch.tensor([row.temperature for row in rows]),
    }
    write_tensors(path, tensors)


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
