"""Count how many of a draft head's tokens the target would have said itself, and how well it knows which.

Drafts and the target's draws share their noise, which depends on seed, position and id alone. A head drafts
from a state of the target and from the tokens since, and a draft is looked at only where all before it were
right: there the tokens since are the target's own. So all places of an answer are drafted from in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.sampling.noise import gumbel_noise
from shared.training.acceptance import DraftAcceptance, TargetAnswer
from shared.training.heads.draft_head import DraftHead
from shared.training.heads.head_trainer import TargetVocabulary
from shared.training.llama import Llama

LONGEST_HEAD_DRAFT = 5
HEAD_STRIDE_TOKENS = 3
"""The distance between two places of an answer that are drafted from."""
CONFIDENCE_BUCKETS = 5


@dataclass(frozen=True, slots=True)
class MeasuredDrafts:
    """Drafts of LONGEST_HEAD_DRAFT (J) tokens from each of N places."""

    right: Tensor  # bool [N, J]: whether the draft is the target's token, where all before are given as such
    confidence: Tensor  # float32 [N, J]

    @property
    def accepted(self) -> Tensor:
        """float32 [N, J]: 1 where a draft and all before it are right."""
        return self.right.float().cumprod(1)

    def acceptance(self) -> DraftAcceptance:
        """Return the shares by position."""
        together = self.accepted.mean(0)
        before = torch.cat((torch.ones(1), together[:-1]))
        alone = torch.where(before > 0, together / before, 0.0)
        return DraftAcceptance(len(self.right), tuple(alone.tolist()), tuple(together.tolist()))

    def calibration(self) -> list[ConfidenceBucket]:
        """Return how often drafts are right, by how sure the head is, where all before them are right."""
        reached = torch.cat((torch.ones(len(self.right), 1), self.accepted[:, :-1]), 1).bool()
        sure, right = self.confidence[reached], self.right[reached]
        number = (sure * CONFIDENCE_BUCKETS).long().clamp_max(CONFIDENCE_BUCKETS - 1)
        found = []
        for bucket in range(CONFIDENCE_BUCKETS):
            of = number == bucket
            count = int(of.sum())
            if count:
                found.append(ConfidenceBucket(count, sure[of].mean().item(), right[of].float().mean().item()))
        return found


@dataclass(frozen=True, slots=True)
class ConfidenceBucket:
    """Drafts of which the head is about as sure: the mean of its confidences, and the share that is right."""

    drafts: int
    confidence: float
    right: float


@torch.no_grad()
def accept_head(
    head: DraftHead, target: Llama, teacher: TargetVocabulary, answers: Sequence[TargetAnswer]
) -> MeasuredDrafts:
    """Draft from places of `answers`; those that are too short have none."""
    head.eval()
    found = [
        _draft_from(head, target, teacher, answer)
        for answer in answers
        if len(answer.tokens) > LONGEST_HEAD_DRAFT
    ]
    empty = torch.empty(0, LONGEST_HEAD_DRAFT)
    return MeasuredDrafts(
        torch.cat([empty.bool(), *(right for right, _ in found)]),
        torch.cat([empty, *(sure for _, sure in found)]),
    )


def _draft_from(
    head: DraftHead, target: Llama, teacher: TargetVocabulary, answer: TargetAnswer
) -> tuple[Tensor, Tensor]:
    """Whether the drafts are right and how sure they are, [N, J] each."""
    prompt, tokens = answer.prompt, torch.tensor(answer.tokens)
    ids = torch.tensor([[*prompt, *answer.tokens]])
    taps = target.model.states_after(ids, head.shape.tap_layers)[0]
    places = torch.arange(0, len(tokens) - LONGEST_HEAD_DRAFT, HEAD_STRIDE_TOKENS)
    state = head.first_state(taps[places + len(prompt) - 1].float())
    right, sure = [], []
    for step in range(LONGEST_HEAD_DRAFT):
        state, out = head.advance(state, teacher.embed(tokens[places + step]).float())
        logits = head.head(out)
        if answer.params.temperature:
            logits /= answer.params.temperature
            _add_noise(logits, answer, (places + step + 1 + len(prompt)).tolist(), head.ids)
        right.append(head.ids[logits.argmax(-1)] == tokens[places + step + 1])
        sure.append(head.confidence(out).sigmoid())
    return torch.stack(right, 1), torch.stack(sure, 1)


def _add_noise(logits: Tensor, answer: TargetAnswer, positions: list[int], ids: Tensor) -> None:
    """Add the noise that the target meets at `positions`, row by row."""
    seed = answer.params.seed
    assert seed is not None
    for number, position in enumerate(positions):
        logits[number] += gumbel_noise([seed], [position], ids.long())[0].float()
