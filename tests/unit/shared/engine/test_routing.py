"""The choice of experts against the routers of the models that it comes from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from shared.engine.loading.model_config import MoeConfig
from shared.engine.torch_backend.routing import choose_experts

GROUPED: dict[str, Any] = {
    "n_routed_experts": 24,
    "num_experts_per_tok": 5,
    "n_group": 6,
    "topk_group": 3,
    "hidden_size": 16,
}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def table(shares: Tensor, chosen: Tensor) -> Tensor:
    """[T, experts]: the shares, in whatever order they were chosen."""
    return torch.zeros(len(shares), 24).scatter(1, chosen, shares)


@pytest.mark.parametrize("normalize", [True, False])
def test_deepseek_v3_takes_the_groups_with_the_two_best_by_sigmoid_and_bias(normalize: bool) -> None:
    router = DeepseekV3TopkRouter(
        DeepseekV3Config(**GROUPED, norm_topk_prob=normalize, routed_scaling_factor=2.5)
    )
    router.weight.data = random(24, 16, seed=1)
    bias = 0.3 * random(24, seed=2)
    router.e_score_correction_bias.copy_(bias)
    logits, shares, chosen = router(random(200, 16, seed=3))
    config = MoeConfig(
        24, 5, 8, normalize, scores="sigmoid", choice_bias=True, scale=2.5,
        num_groups=6, groups_per_token=3, group_best=2,
    )  # fmt: skip
    ours = choose_experts(logits, bias, config)
    torch.testing.assert_close(table(*ours), table(shares, chosen))


def test_deepseek_v2_takes_the_groups_with_the_best_by_softmax() -> None:
    config = DeepseekV2Config(
        **GROUPED, topk_method="group_limited_greedy", routed_scaling_factor=16.0, num_attention_heads=4
    )
    router = DeepseekV2TopkRouter(config)
    router.weight.data = random(24, 16, seed=1)
    logits, shares, chosen = router(random(200, 16, seed=3))
    ours = choose_experts(
        logits, None, MoeConfig(24, 5, 8, normalize=False, scale=16.0, num_groups=6, groups_per_token=3)
    )
    torch.testing.assert_close(table(*ours), table(shares, chosen))


def test_scores_that_are_all_nought_leave_shares_that_are_nought() -> None:
    config = MoeConfig(4, 2, 8, normalize=True, scores="sigmoid")
    shares, _ = choose_experts(torch.full((1, 4), -1000.0), None, config)
    assert shares.tolist() == [[0.0, 0.0]]
