"""How large heads are, and what cannot be one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shared.engine.draft_head.config import MAX_BLOCKS
from shared.engine.loading.config import load_model_config
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest
from shared.training.heads.draft_head import DraftHead
from shared.training.heads.head_shape import MAX_DRAFT_VOCABULARY, plan_head
from tests.support.engine import save_random_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    config = load_model_config(save_random_model(tmp_path_factory.mktemp("target")))
    return replace(config, layers=config.layers[:1] * 30, hidden_size=576, vocab_size=49152)


def test_a_head_of_a_small_model_is_a_fifteenth_of_it(target: ModelConfig) -> None:
    plan = plan_head(target)
    assert plan.tap_layers == (7, 17, 29)
    assert (plan.hidden_size, plan.intermediate_size, plan.num_blocks) == (576, 1536, 1)
    assert plan.draft_vocab_size == MAX_DRAFT_VOCABULARY
    assert plan.num_parameters == 9_031_680


def test_parameters_are_counted_as_they_are_made(target: ModelConfig) -> None:

    plan = plan_head(target, blocks=2, hidden=64)
    head = DraftHead(plan, torch.arange(plan.draft_vocab_size, dtype=torch.int32))
    assert plan.num_parameters == sum(each.numel() for each in head.parameters() if each.ndim == 2)


def test_of_a_small_vocabulary_all_is_known(target: ModelConfig) -> None:
    assert plan_head(replace(target, vocab_size=500)).draft_vocab_size == 500


def test_sizes_up_to_the_limits_are_taken(target: ModelConfig) -> None:
    assert plan_head(target, MAX_BLOCKS, 32).num_blocks == MAX_BLOCKS
    assert plan_head(target, 0, 576).hidden_size == 576


@pytest.mark.parametrize(
    ("blocks", "hidden", "layers", "sentence"),
    [
        (MAX_BLOCKS + 1, 0, 30, "--layers is 9; a draft head has 1 to 8 blocks"),
        (0, 31, 30, "--hidden is 31; a draft head for this target is 32 to 576 wide"),
        (0, 577, 30, "--hidden is 577; a draft head for this target is 32 to 576 wide"),
        (0, 0, 2, "the target has 2 layers; a draft head looks after 3 different ones"),
    ],
)
def test_what_cannot_be_is_said(
    target: ModelConfig, blocks: int, hidden: int, layers: int, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        plan_head(replace(target, layers=target.layers[:layers]), blocks, hidden)
