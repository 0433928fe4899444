"""The size of a draft, and what it knows before it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Gemma2Config, MixtralConfig, Qwen3Config

from shared.engine.loading.config import load_model_config
from shared.errors import InvalidRequest, NotFound
from shared.training.distillation import DistillOptions
from shared.training.draft_distillation import DraftRun
from shared.training.draft_shape import plan_draft
from shared.training.draft_start import start_draft
from tests.support.engine import make_engine, oracle, oracle_logits, save_random_model

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
IDS = list(range(5, 45))


def target(folder: Path, **fields: object) -> Path:
    return save_random_model(folder, **{**SHAPE, **fields})


def logits_of_draft(model: Path, layers: int, hidden: int) -> Tensor:
    config = load_model_config(model, "float32")
    draft = start_draft(model, config, plan_draft(config, layers, hidden))
    with torch.no_grad():
        logits: Tensor = draft(torch.tensor([IDS]))[0]
    return logits


def test_a_draft_of_all_layers_is_its_target(tmp_path: Path) -> None:
    model = target(tmp_path)
    theirs = oracle_logits(oracle(model), IDS)
    assert (logits_of_draft(model, 4, 64) - theirs).abs().max() < 1e-4


def test_a_narrower_draft_is_its_target_where_that_uses_no_more(tmp_path: Path) -> None:
    """A target whose vectors lie in 32 of 64 dimensions, in any direction, and whose other heads and channels
    give nothing: what is left out of it is nothing."""
    model = target(tmp_path, rms_norm_eps=1e-12)
    directions = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1))).Q[:, :32]
    inside = directions @ directions.T
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("embed_tokens.weight"):
            tensors[name] = tensor @ inside
        elif name.endswith("o_proj.weight"):
            kept = tensor.view(64, 4, 2, 8) * torch.tensor([0.0, 1, 0, 1])[None, :, None, None]
            tensors[name] = inside @ kept.reshape(64, 64)
        elif name.endswith("down_proj.weight"):
            tensors[name] = inside @ (tensor * (torch.arange(96) % 3 == 1))
        elif name == "model.norm.weight":
            tensors[name] = torch.full((64,), 1.7)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, model / "model.safetensors")
    ours = logits_of_draft(model, 4, 32)
    assert (ours - make_engine(model).logits(IDS)).abs().max() < 1e-3


def test_layers_are_taken_from_the_whole_depth(tmp_path: Path) -> None:
    config = load_model_config(target(tmp_path, num_hidden_layers=7), "float32")
    assert plan_draft(config, 3).layers == (0, 3, 6)
    assert plan_draft(config, 1).layers == (0,)
    assert plan_draft(config, 7).layers == tuple(range(7))


def test_a_draft_is_by_default_as_wide_with_a_tenth_of_the_layers(tmp_path: Path) -> None:
    config = load_model_config(target(tmp_path, num_hidden_layers=23), "float32")
    plan = plan_draft(config)
    assert plan.shape.num_hidden_layers == 2
    assert plan.shape.hidden_size == 64
    assert plan.shape.intermediate_size == 96


@pytest.mark.parametrize(
    ("layers", "hidden", "sentence"),
    [
        (5, 0, "--layers is 5; the target has 4"),
        (0, 60, "--hidden is 60; it must be a multiple of the target's head dimension 8, from 32 to 64"),
        (0, 72, "--hidden is 72"),
        (0, 24, "--hidden is 24"),
    ],
)
def test_a_size_that_cannot_be_is_refused(layers: int, hidden: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        plan_draft(load_model_config(target(tmp_path), "float32"), layers, hidden)


@pytest.mark.parametrize("hidden", [32, 64])
def test_the_ends_of_the_widths_are_taken(hidden: int, tmp_path: Path) -> None:
    assert plan_draft(load_model_config(target(tmp_path), "float32"), 0, hidden).shape.hidden_size == hidden


@pytest.mark.parametrize("config_class", [Gemma2Config, MixtralConfig, Qwen3Config])
def test_targets_of_other_families_have_drafts_too(config_class: type, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**SHAPE, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = save_random_model(tmp_path, config_class, **fields)
    assert torch.isfinite(logits_of_draft(model, 2, 32)).all()


@pytest.mark.parametrize(("positions", "enough"), [(151, False), (152, True)])
def test_a_target_needs_positions_for_prompt_answer_and_draft(
    positions: int, enough: bool, tmp_path: Path
) -> None:
    model = target(tmp_path / "target", max_position_embeddings=positions)
    options = DistillOptions(model, tmp_path / "draft", minutes=1)
    with pytest.raises(
        NotFound if enough else InvalidRequest, match="no tokenizer.json" if enough else "need 152 at least"
    ):
        DraftRun(options, print)
