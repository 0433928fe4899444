"""What a head computes, and what it is before it has learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shared.training.heads.draft_head import DraftHead, start_head
from tests.unit.shared.training.heads.tiny_heads import KNOWN, SHAPE, small_head, small_target


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def rms(values: Tensor) -> Tensor:
    return values / (values.square().mean(-1, keepdim=True) + SHAPE.rms_norm_eps).sqrt()


@torch.no_grad()
def test_it_computes_what_its_page_says() -> None:
    head = DraftHead(replace(SHAPE, num_blocks=2), torch.arange(KNOWN, dtype=torch.int32)).eval()
    for parameter in head.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
    weights = dict(head.named_parameters())
    taps, embedded = torch.randn(5, 3, 32), torch.randn(5, 32)
    norms = weights["taps_norm.weight"].view(3, 32)
    first = (
        torch.cat([rms(taps[:, index]) * norms[index] for index in range(3)], 1) @ weights["fuse.weight"].T
    )
    torch.testing.assert_close(head.first_state(taps), first, rtol=1e-4, atol=1e-5)
    x = (rms(first) * weights["state_norm.weight"]) @ weights["mix_state.weight"].T
    x = x + (rms(embedded) * weights["embed_norm.weight"]) @ weights["mix_embed.weight"].T
    for block in ("blocks.0", "blocks.1"):
        gate, up = ((rms(x) * weights[f"{block}.norm.weight"]) @ weights[f"{block}.gate_up.weight"].T).chunk(
            2, 1
        )
        x = x + (gate * gate.sigmoid() * up) @ weights[f"{block}.down.weight"].T
    out = rms(x) * weights["out_norm.weight"]
    state, computed = head.advance(first, embedded)
    torch.testing.assert_close(state, x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(computed, out, rtol=1e-4, atol=1e-5)
    sure = out @ weights["confidence.weight"] + weights["confidence.bias"]
    torch.testing.assert_close(head.confidence(out), sure, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_before_it_learns_it_says_what_the_target_has_just_said() -> None:
    target = small_target()
    head = small_head(target, first=7)
    ids = torch.randint(0, 64, (1, 12))
    taps = target.model.states_after(ids, SHAPE.tap_layers)[0]
    _, out = head.advance(head.first_state(taps), target.model.embed_tokens(ids[0]))
    torch.testing.assert_close(head.head(out), target(ids)[0][:, 7 : 7 + KNOWN], rtol=1e-3, atol=1e-3)


def test_while_it_learns_it_does_not_see_all_of_the_states() -> None:
    head = small_head(small_target()).train()
    taps = torch.randn(4, 3, 32)
    assert not torch.equal(head.first_state(taps), head.first_state(taps))
    assert torch.equal(head.eval().first_state(taps), head.first_state(taps))


def test_its_last_matrix_stays_the_targets() -> None:
    head = small_head(small_target())
    assert [name for name, value in head.named_parameters() if not value.requires_grad] == ["head.weight"]


@torch.no_grad()
def test_a_narrower_head_begins_near_to_what_the_target_says() -> None:
    target = small_target()
    embedding = target.model.embed_tokens.weight
    embedding[:, 16:] *= 0.01
    head = start_head(replace(SHAPE, hidden_size=16), torch.arange(KNOWN, dtype=torch.int32), target)
    taps = torch.randn(9, 3, 32)
    taps[:, 2, 16:] *= 0.01
    _, out = head.advance(head.first_state(taps), torch.zeros(9, 32))
    said = target.head(target.model.norm(taps[:, 2]))[:, :KNOWN]
    assert torch.nn.functional.cosine_similarity(head.head(out), said).min() > 0.99
