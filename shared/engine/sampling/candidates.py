"""The likeliest outcomes of a draw: its own, and what would have been drawn without it, and so on.

A drafter asks what the target may draw where it itself draws this. Both meet the same noise, so that the
likeliest other id is the next one by `logits/T + G(seed, position, id)`, not by probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.engine.sampling.draw import native_sampler, pick
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.noise import gumbel_noise


class LikelyDraw(NamedTuple):
    """An id that may be drawn; `chance` is its share, by score, among those that are told with it."""

    token_id: int
    chance: float


def rank_draws(
    logits: Tensor, rows: Sequence[DrawRow], drawn: Sequence[int | None], count: int
) -> list[tuple[LikelyDraw, ...]]:
    """Return the `count` likeliest outcomes of each row of `logits` [len(rows), vocab], the drawn one first;
    fewer where nothing else is allowed. `logits` are those that `draw` has left, and are overwritten.

    The chances are softmax over the scores, as if the target's scores were these with Gumbel noise of their
    own.
    """
    native = native_sampler()
    found: list[list[tuple[int, float]]] = [[] for _ in rows]
    left = [index for index, token_id in enumerate(drawn) if token_id is not None]
    ids = [token_id for token_id in drawn if token_id is not None]
    with torch.inference_mode():
        logits = logits.contiguous()
        for place in range(count):
            for index, token_id in zip(left, ids, strict=True):
                found[index].append((token_id, _score(logits[index], rows[index], token_id)))
                logits[index, token_id] = -torch.inf
            if place == count - 1 or not left:
                break
            several = logits[torch.tensor(left)]
            several_rows = [rows[index] for index in left]
            next_ids = pick(several, several_rows) if native is None else native.pick(several, several_rows)
            pairs = [(index, each) for index, each in zip(left, next_ids, strict=True) if each is not None]
            left, ids = [index for index, _ in pairs], [each for _, each in pairs]
    return [_candidates(scores) for scores in found]


def _score(logits: Tensor, row: DrawRow, token_id: int) -> float:
    """logits/T + G of one id; the logit where nothing is drawn by chance."""
    logit, params = float(logits[token_id]), row.params
    if params.temperature <= 0:
        return logit
    noise = gumbel_noise([params.seed], [row.position], torch.tensor([token_id]))
    return logit / params.temperature + float(noise[0, 0])


def _candidates(scores: Sequence[tuple[int, float]]) -> tuple[LikelyDraw, ...]:
    chances = torch.softmax(torch.tensor([score for _, score in scores], dtype=torch.float64), 0).tolist()
    return tuple(LikelyDraw(token_id, chance) for (token_id, _), chance in zip(scores, chances, strict=True))
