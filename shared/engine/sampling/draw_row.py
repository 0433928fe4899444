"""The options of drawing from one row of logits, and what the penalties know of its sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from shared.engine.sampling.id_bits import IdBits
from shared.sampling.parameters import SamplingParams


class TokenCounts:
    """The counts that penalties need of a sequence; they grow with it and can be rebuilt from its tokens."""

    def __init__(self, vocab_size: int, token_ids: Sequence[int], prompt_len: int) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool)  # in prompt or output
        self.output = torch.zeros(vocab_size, dtype=torch.float32)  # times in the output
        self.seen[torch.tensor(token_ids[:prompt_len], dtype=torch.int64)] = True
        self.add(token_ids[prompt_len:])

    def add(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self.seen[token_id] = True
            self.output[token_id] += 1

    def plus(self, token_ids: Sequence[int]) -> TokenCounts:
        """These counts after `token_ids` more; self when there are none."""
        if not token_ids:
            return self
        copy = object.__new__(TokenCounts)
        copy.seen, copy.output = self.seen.clone(), self.output.clone()
        copy.add(token_ids)
        return copy


class DrawRow(NamedTuple):
    """The options of one draw. `position` is absolute: that of the token being drawn.

    `allowed`, unless None, has the only ids that may be drawn; `blocked_ids` may not.
    """

    params: SamplingParams
    position: int
    blocked_ids: Sequence[int] = ()
    counts: TokenCounts | None = None
    allowed: IdBits | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether its logits are drawn from as they are."""
        return (
            self.counts is None
            and self.allowed is None
            and not self.blocked_ids
            and not self.params.logit_bias
        )
