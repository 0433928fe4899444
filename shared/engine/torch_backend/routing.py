"""Choose which experts a token goes to, and by how much each of them counts."""

from __future__ import annotations

import torch
from torch import Tensor

from shared.engine.loading.model_config import MoeConfig

LEAST_SUM = 1e-20
"""Added to the sum that scores are divided by, as DeepSeek-V3 does: all of them may be zero."""


def choose_experts(logits: Tensor, choice_bias: Tensor | None, config: MoeConfig) -> tuple[Tensor, Tensor]:
    """Router logits float32 [T, experts] -> shares float32 and experts int64, both [T, experts_per_token]."""
    scores = logits.softmax(-1) if config.scores == "softmax" else logits.sigmoid()
    choice = scores if choice_bias is None else scores + choice_bias
    if config.groups_per_token < config.num_groups:
        choice = _best_groups(choice, config)
    chosen = choice.topk(config.experts_per_token, dim=-1).indices
    shares = scores.gather(-1, chosen)
    if config.normalize:
        shares = shares / (shares.sum(-1, keepdim=True) + LEAST_SUM)
    return shares * config.scale, chosen


def _best_groups(choice: Tensor, config: MoeConfig) -> Tensor:
    """`choice` [T, experts] with -inf for experts of groups that a token does not go to."""
    grouped = choice.view(len(choice), config.num_groups, -1)  # [T, groups, experts of a group]
    best = grouped.topk(config.group_best, dim=-1).values.sum(-1)  # [T, groups]
    taken = best.topk(config.groups_per_token, dim=-1).indices
    left_out = torch.ones_like(best, dtype=torch.bool).scatter_(-1, taken, False)
    return grouped.masked_fill(left_out[..., None], -torch.inf).view_as(choice)
