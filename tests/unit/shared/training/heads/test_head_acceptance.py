"""How often a head is right: against drawing token by token, and by how sure it is."""

from __future__ import annotations

import pytest
import torch

from shared.engine.sampling.noise import gumbel_noise
from shared.training.acceptance import TargetAnswer
from shared.training.heads.draft_head import DraftHead
from shared.training.heads.head_acceptance import (
    HEAD_STRIDE_TOKENS,
    LONGEST_HEAD_DRAFT,
    MeasuredDrafts,
    accept_head,
)
from shared.training.heads.head_trainer import TargetVocabulary
from shared.training.llama import Llama
from tests.unit.shared.training.heads.tiny_heads import SHAPE, drawn_answer, small_head, small_target


@pytest.fixture(scope="module")
def target() -> Llama:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return small_target()


@torch.no_grad()
def draft_alone(head: DraftHead, target: Llama, answer: TargetAnswer, place: int) -> int:
    """Draft on the head's own tokens, one by one; return how many are right before the first that is not."""
    ids = torch.tensor([[*answer.prompt, *answer.tokens]])
    base = len(answer.prompt) + place
    state = head.first_state(target.model.states_after(ids, SHAPE.tap_layers)[:, base - 1])
    token = answer.tokens[place]
    for step in range(LONGEST_HEAD_DRAFT):
        state, out = head.advance(state, target.model.embed_tokens(torch.tensor([token])))
        logits = head.head(out)[0]
        if answer.params.temperature:
            noise = gumbel_noise([answer.params.seed or 0], [base + 1 + step], head.ids.long())[0]
            logits = logits / answer.params.temperature + noise
        token = int(head.ids[logits.argmax()])
        if token != answer.tokens[place + 1 + step]:
            return step
    return LONGEST_HEAD_DRAFT


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_is_counted_is_what_drafting_token_by_token_gives(target: Llama, temperature: float) -> None:
    head = small_head(target)
    answer = drawn_answer(target, [5, 9, 11], 24, temperature, seed=2)
    teacher = TargetVocabulary(target, head.ids)
    teacher._embedding = target.model.embed_tokens.weight  # the page's arithmetic, not bfloat16's
    found = accept_head(head, target, teacher, [answer])
    places = range(0, len(answer.tokens) - LONGEST_HEAD_DRAFT, HEAD_STRIDE_TOKENS)
    assert found.accepted.sum(1).tolist() == [draft_alone(head, target, answer, place) for place in places]


def test_answers_that_are_too_short_are_left_out(target: Llama) -> None:
    head = small_head(target)
    short = drawn_answer(target, [5], LONGEST_HEAD_DRAFT, 0.0, seed=1)
    found = accept_head(head, target, TargetVocabulary(target, head.ids), [short])
    assert found.right.shape == (0, LONGEST_HEAD_DRAFT)
    assert found.calibration() == []


def test_shares_are_of_the_drafts_that_got_there() -> None:
    right = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    found = MeasuredDrafts(right, torch.full((4, 5), 0.5)).acceptance()
    assert found.drafts == 4
    assert found.alone == pytest.approx((3 / 4, 2 / 3, 1 / 2, 1, 1))
    assert found.together == pytest.approx((3 / 4, 1 / 2, 1 / 4, 1 / 4, 1 / 4))


def test_calibration_counts_the_drafts_behind_right_ones_alone() -> None:
    right = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1]]).bool()
    confidence = torch.tensor([[0.1, 0.9, 0.9, 0.9, 0.9], [0.9, 1.0, 0.15, 0.5, 0.5]])
    low, high = MeasuredDrafts(right, confidence).calibration()
    assert (low.drafts, low.right) == (2, 0.0)
    assert low.confidence == pytest.approx(0.125)
    assert (high.drafts, high.right) == (2, 1.0)
