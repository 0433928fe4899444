"""The draw in C++ (native/sampler.cpp): the same ids as the torch operations of draw.py, much sooner."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shared.engine.sampling.draw_row import DrawRow
from shared.sampling.parameters import SamplingParams

_MASK64 = 2**64 - 1
ELEMENTS_PER_THREAD = 1 << 16
"""Logits that a thread must have to look at for it to be worth waking."""

RowSummary = tuple[float, tuple[tuple[int, float], ...]]
"""The logarithm of the sum of a row's chances, and its likeliest ids with their log-probabilities."""


_DRAW = struct.Struct("@dddQqqP")
_BEFORE, _POSITION, _BEHIND = struct.Struct("@dddQ"), struct.Struct("@q"), struct.Struct("@qP")
"""One row's options as the C++ has them: temperature, top-p, min-p, seed, position, top-k, and where the bits
of the allowed ids are. Packed in one call, which costs a third of filling a ctypes structure."""
LEAST_ARRAY_ROWS = 16
"""The positions of so many rows are written sooner as an array than one by one."""
PACKED_FILTERS = ("top_p", "min_p", "top_k")
"""The filters of `shared.sampling.parameters.FILTERS` that are in it, and so in native/sampler.cpp."""


class NativeSampler:
    """The functions of one loaded library. Rows are shared out among as many threads as torch has."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._sample = library.penstock_sample
        self._sample.argtypes = (pointer, integer, integer, pointer, pointer, ctypes.c_int)
        self._sample.restype = None
        self._logprobs = library.penstock_logprobs
        self._logprobs.argtypes = (
            pointer,
            integer,
            pointer,
            pointer,
            integer,
            integer,
            *[pointer] * 3,
            ctypes.c_int,
        )
        self._logprobs.restype = None
        self._penalise = library.penstock_penalise
        self._penalise.argtypes = (*[pointer] * 3, integer, *[ctypes.c_float] * 3)
        self._penalise.restype = None

    def penalise(self, logits: Tensor, params: SamplingParams, seen: Tensor, output: Tensor) -> None:
        """The penalties on one row of `logits` [vocab], in place; `seen` bool, `output` float32 [vocab]."""
        self._penalise(
            logits.data_ptr(),
            seen.data_ptr(),
            output.data_ptr(),
            len(logits),
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )

    def pick(self, logits: Tensor, rows: Sequence[DrawRow]) -> list[int | None]:
        """The drawn id of each row of `logits` [len(rows), vocab], float32, contiguous, on the CPU; ids that
        are not allowed are overwritten.

        None where every id is ruled out or a logit is no number.
        """
        ids = self.pick_packed(logits, b"".join(map(packed_row, rows)))
        return [None if token_id < 0 else token_id for token_id in ids]

    def pick_packed(self, logits: Tensor, draws: bytes | bytearray) -> list[int]:
        """The same of rows whose options are packed; -1 where nothing can be drawn."""
        count, vocab_size = logits.shape
        ids = (ctypes.c_int64 * count)()
        options = draws if isinstance(draws, bytes) else (ctypes.c_char * len(draws)).from_buffer(draws)
        self._sample(logits.data_ptr(), count, vocab_size, options, ids, _threads(count, vocab_size))
        return ids[:]

    def summarise(self, logits: Tensor, num_top: Mapping[int, int]) -> dict[int, RowSummary]:
        """Summarise the rows of `logits` [rows, vocab] that `num_top` names, with so many of their likeliest
        ids: finite ones, the lowest first among equals."""
        count, vocab_size, most = len(num_top), logits.shape[-1], max(num_top.values())
        rows = np.fromiter(num_top.keys(), np.int64, count)
        wanted = np.fromiter(num_top.values(), np.int64, count)
        totals = np.empty(count, np.float64)
        ids, logprobs = np.empty((count, most), np.int64), np.empty((count, most), np.float32)
        self._logprobs(
            logits.data_ptr(),
            vocab_size,
            rows.ctypes.data,
            wanted.ctypes.data,
            count,
            most,
            totals.ctypes.data,
            ids.ctypes.data,
            logprobs.ctypes.data,
            _threads(count, vocab_size),
        )
        told = zip(num_top.items(), totals.tolist(), ids.tolist(), logprobs.tolist(), strict=True)
        return {
            index: (
                total,
                tuple(pair for pair in zip(best[:top], chances[:top], strict=True) if pair[0] >= 0),
            )
            for (index, top), total, best, chances in told
        }


def _threads(count: int, vocab_size: int) -> int:
    return max(1, min(torch.get_num_threads(), count, count * vocab_size // ELEMENTS_PER_THREAD))


def packed_draw(temperature: float, seed: int, position: int) -> bytes:
    """Return the options of a draw that nothing rules over but its temperature."""
    return _DRAW.pack(temperature, 1.0, 0.0, seed & _MASK64, position, 0, 0)


class PackedOptions(NamedTuple):
    """The options of the draws of a sequence that nothing rules over, packed: `whole` with position 0."""

    before: bytes
    behind: bytes
    whole: bytes

    @classmethod
    def of(cls, params: SamplingParams) -> PackedOptions:
        before = _BEFORE.pack(params.temperature, params.top_p, params.min_p, params.seed & _MASK64)
        behind = _BEHIND.pack(params.top_k, 0)
        return cls(before, behind, before + _POSITION.pack(0) + behind)

    def at(self, position: int) -> bytes:
        return self.before + _POSITION.pack(position) + self.behind


_whole_of = operator.attrgetter("whole")


def packed_at(options: Sequence[PackedOptions], positions: Sequence[int]) -> bytes | bytearray:
    """Return the draws of many sequences, one of each at its position."""
    if len(options) < LEAST_ARRAY_ROWS:
        return b"".join([each.at(position) for each, position in zip(options, positions, strict=True)])
    draws = bytearray().join(map(_whole_of, options))
    words = np.frombuffer(draws, np.int64).reshape(-1, _DRAW.size // 8)
    words[:, len(_BEFORE.format) - 1] = positions
    return draws


def packed_row(row: DrawRow) -> bytes:
    """Return the options of one draw as the C++ has them."""
    params = row.params
    return _DRAW.pack(
        params.temperature,
        params.top_p,
        params.min_p,
        params.seed & _MASK64,
        row.position,
        params.top_k,
        0 if row.allowed is None else row.allowed.ctypes.data,
    )
