"""The README of a head."""

from __future__ import annotations

import torch

from shared.training.acceptance import DraftAcceptance
from shared.training.heads.head_acceptance import MeasuredDrafts
from shared.training.heads.head_card import HeadFacts, MeasuredHead, head_card, head_pays, head_verdict
from tests.unit.shared.training.heads.tiny_heads import SHAPE

LOOKUP = DraftAcceptance(4, (0.5,) * 8, (0.25,) * 8, 0.5)


def measured(*, right: bool) -> MeasuredHead:
    drafts = MeasuredDrafts(torch.full((4, 5), right), torch.full((4, 5), 0.9))
    return MeasuredHead("code", 0.7, drafts, LOOKUP)


def test_the_card_has_acceptance_calibration_and_gain() -> None:
    facts = HeadFacts("target.gguf", SHAPE, 0.987, 12.4, 3456, [measured(right=True)])
    card = head_card(facts)
    assert "# A draft head for target.gguf" in card
    assert "40 of the target's 64 tokens (98.7% of what it says)" in card
    assert "in 12 minutes from 3456 tokens" in card
    assert "| code | 0.7 | this head | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 6.00 |" in card
    assert "| code | 0.7 | n-gram lookup | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 | 2.25 |" in card
    assert "| code | 0.7 | 0.90: 1.00 (20) |" in card
    assert "- code, temperature 0.7: up to 2: 3.00 tokens a step, 2.17 times the speed; up to 3: " in card


def test_the_verdict_says_what_is_gained_and_at_what_price() -> None:
    good, bad = measured(right=True), measured(right=False)
    assert head_pays(good)
    assert not head_pays(bad)
    assert "the head pays: 2.84 times the speed with 5.00 tokens a step" in head_verdict(good)
    assert "the head does not pay: 1.00 times the speed" in head_verdict(bad)
