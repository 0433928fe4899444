"""Muon, beside torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shared.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16)])
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    one = Muon([ours], 0.02, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        one.step()
        other.step()  # type: ignore[no-untyped-call]  # torch has no types for it
    assert not torch.equal(ours, theirs)  # torch multiplies in bfloat16
    torch.testing.assert_close(ours, theirs, rtol=0, atol=4 * 0.02 * 0.2 * 0.02 * max(shape) ** 0.5)
    assert one.state[ours].keys() == other.state[theirs].keys()


def test_a_step_has_singular_values_of_about_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(20, 50)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_no_gradient_at_all_is_no_step() -> None:
    assert torch.equal(orthogonal(torch.zeros(3, 4)), torch.zeros(3, 4))
