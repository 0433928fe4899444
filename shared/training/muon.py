"""Muon: momentum whose steps are made orthogonal (Jordan et al., https://kellerjordan.github.io/posts/muon/).

`torch.optim.Muon` multiplies in bfloat16 whatever the CPU: where that is slow, its steps take longer than
what they learn from. Here they are multiplied in `product_type`. Slots of the state have torch's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shared.training.precision import product_type

MOMENTUM = 0.95
ROUNDS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients that bring all singular values near 1 in ROUNDS rounds, each at a slope as steep as can
be."""
ADAMW_RMS = 0.2
"""The size that steps of AdamW have, which steps are scaled to: its learning rates fit (arXiv:2502.16982)."""
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """Step matrices; other parameters have another optimizer."""

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay})

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # none here has a closure
        """Apply the gradients."""
        assert closure is None
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if matrix.grad is not None:
                        self._move(matrix, matrix.grad, group["lr"], group["weight_decay"])

    def _move(self, matrix: nn.Parameter, gradient: Tensor, rate: float, weight_decay: float) -> None:
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum: Tensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - MOMENTUM)
        step = orthogonal(gradient.lerp(momentum, MOMENTUM))  # Nesterov's
        matrix.mul_(1 - rate * weight_decay)
        matrix.add_(step, alpha=-rate * ADAMW_RMS * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """[m, n] -> the nearest one whose singular values are about 1, by Newton and Schulz."""
    one, three, five = QUINTIC
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp_min(EPSILON)
    x = x.to(product_type())
    for _ in range(ROUNDS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=three, alpha=five), x, beta=one)
    near: Tensor = x.to(matrix.dtype)
    return near if wide is matrix else near.T
