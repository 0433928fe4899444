"""The draw in C++ (native/sampler.cpp): the same ids as the torch operations of draw.py, much sooner."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

from shared.engine.sampling.draw_row import DrawRow
from shared.sampling import SamplingParams

_MASK64 = 2**64 - 1


class _Draw(ctypes.Structure):
    """One row's options, laid out as the C++ has them."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
    )


class NativeSampler:
    """The functions of one loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._argmax = library.penstock_argmax
        self._argmax.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._argmax.restype = None
        self._sample = library.penstock_sample
        self._sample.argtypes = (*self._argmax.argtypes[:3], ctypes.c_void_p, ctypes.c_void_p)
        self._sample.restype = None
        self._penalise = library.penstock_penalise
        self._penalise.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_float] * 3)
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
        """The drawn id of each row of `logits` [len(rows), vocab], float32, contiguous, on the CPU.

        None where every id is ruled out or a logit is no number.
        """
        count, vocab_size = logits.shape
        ids = (ctypes.c_int64 * count)()
        if all(row.params.temperature == 0.0 for row in rows):
            self._argmax(logits.data_ptr(), count, vocab_size, ids)
        else:
            draws = (_Draw * count)(*(_options(row) for row in rows))
            self._sample(logits.data_ptr(), count, vocab_size, draws, ids)
        return [None if token_id < 0 else token_id for token_id in ids]


def _options(row: DrawRow) -> _Draw:
    params = row.params
    return _Draw(
        params.temperature,
        params.top_p,
        params.min_p,
        params.seed & _MASK64,
        row.position,
        params.top_k,
    )
