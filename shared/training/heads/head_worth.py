"""Judge what a draft head gains when its confidence chooses how much is drafted and verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.training.heads.head_acceptance import MeasuredDrafts

RATE_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class HeadPrices:
    """The costs of a drafted and of a verified token, in steps of the target."""

    drafted: float = 0.07
    verified: float = 0.12


@dataclass(frozen=True, slots=True)
class HeadGain:
    """Tokens of a step of the target, and how many times as fast decoding is, by up to `longest` drafts of
    which `verified` are verified in the mean."""

    longest: int
    tokens_per_step: float
    verified: float
    speedup: float


def head_gain(drafts: MeasuredDrafts, longest: int, prices: HeadPrices) -> HeadGain:
    """Return what drafts gain whose number is chosen by confidence, at every place anew."""
    return max(_gains(drafts, longest, prices), key=lambda gain: gain.speedup)


def _gains(drafts: MeasuredDrafts, longest: int, prices: HeadPrices) -> Iterator[HeadGain]:
    """Look for the rate that the choice itself leads to (Dinkelbach's method); 1 is that without drafts."""
    yield HeadGain(longest, 1.0, 0.0, 1.0)
    rate = 1.0
    for _ in range(RATE_ROUNDS if len(drafts.right) else 0):
        drafted, verified = choose_lengths(drafts.confidence[:, :longest], prices, rate)
        taken = torch.arange(longest) < verified[:, None]
        tokens = 1 + (drafts.accepted[:, :longest] * taken).sum(1).mean().item()
        mean = verified.mean().item()
        rate = tokens / (1 + prices.drafted * drafted.mean().item() + prices.verified * mean)
        yield HeadGain(longest, tokens, mean, rate)


def choose_lengths(confidence: Tensor, prices: HeadPrices, rate: float) -> tuple[Tensor, Tensor]:
    """Return how many tokens are drafted and how many of them verified, [N] each, of confidences [N, J].

    `rate` tokens are made in the time of a step without drafts: one more token is worth its price as long as
    the chance that it is accepted is above what would be made in the time that it takes. The first is always
    drafted: how sure the head is shows only then.
    """
    chance = confidence.cumprod(1)
    before = torch.cat((torch.ones(len(chance), 1), chance[:, :-1]), 1)
    worth_drafting = before >= (prices.drafted + prices.verified) * rate
    worth_drafting[:, 0] = True
    drafted = worth_drafting.float().cumprod(1).sum(1)
    verified = (chance >= prices.verified * rate).float().cumprod(1).sum(1)
    return drafted, torch.minimum(drafted, verified)
