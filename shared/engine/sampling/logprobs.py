"""Log-probabilities of the raw logits, told of rows before anything is done to them."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.sampling.native_sampler import NativeSampler, RowSummary
from shared.sampling.parameters import TokenLogprob


class Logprobs:
    """The log-probabilities of those rows of `logits` [rows, vocab] that `num_top` names, with their best
    ids.

    Rows are read again when they are described; of those that `will_change` by then a copy is kept.
    """

    def __init__(
        self,
        logits: Tensor,
        num_top: Mapping[int, int],
        native: NativeSampler | None,
        will_change: Set[int] = frozenset(),
    ) -> None:
        self._summaries: dict[int, RowSummary] = {}
        self._raw: dict[int, NDArray[np.float32]] = {}
        if not num_top:
            return
        if native is None:
            self._summaries = {index: summarise(logits[index], count) for index, count in num_top.items()}
        else:
            self._summaries = native.summarise(logits, num_top)
        raw = logits.numpy()
        self._raw = {index: raw[index].copy() if index in will_change else raw[index] for index in num_top}

    def describe(self, index: int, token_id: int | None) -> TokenLogprob | None:
        """Describe a row; None for one that was not named, or from which nothing was drawn."""
        if token_id is None or index not in self._summaries:
            return None
        total, top = self._summaries[index]
        return TokenLogprob(token_id, float(np.float32(float(self._raw[index][token_id]) - total)), top)


def summarise(row: Tensor, num_top: int) -> RowSummary:
    """Summarise in torch operations: the C++ is held to this, and it runs where that cannot."""
    row = row.double()
    total = float(torch.logsumexp(row, dim=-1))
    values, ids = torch.topk(row, min(num_top, len(row)))
    return total, tuple(zip(ids.tolist(), (values - total).float().tolist(), strict=True))
