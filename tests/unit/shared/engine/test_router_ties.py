"""Where a router's two best experts are equal within rounding, rounding decides between them; nowhere else.

A row that goes to another expert than transformers' has other logits altogether, and rows behind it see a
part of that. These tests tell such a near-tie, by the router's logits in double precision, from an error.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel

from tests.support.engine import BACKENDS, make_engine, save_random_model

HIDDEN, ROWS = 896, 250
TOLERANCE = 1e-3
"""The tolerance of logits of about 5: which expert was chosen shows in differences of more than 1."""
GATE = "model.layers.0.block_sparse_moe.gate.weight"


def saved(folder: Path, apart: float) -> Path:
    """One layer, in which no row's experts touch another row. The router's rows differ by a share `apart`."""
    save_random_model(
        folder,
        MixtralConfig,
        hidden_size=HIDDEN,
        num_attention_heads=14,
        num_hidden_layers=1,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=None,
    )
    tensors = load_file(folder / "model.safetensors")
    gate = tensors[GATE]
    gate[1] = gate[0] + apart * gate[1]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def exact(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    return model


def margins(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """[T]: by how much the first expert's router logit is above the second's, in double precision."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids]), output_router_logits=True).router_logits[0]
    return logits[:, 0] - logits[:, 1]


def logits_with(model: PreTrainedModel, ids: list[int], expert: int) -> Tensor:
    """float64 [T, vocab] where every row goes to `expert`, in whose place both are then."""
    experts = model.model.layers[0].mlp.experts
    with torch.inference_mode():
        for weights in (experts.gate_up_proj, experts.down_proj):
            weights[1 - expert] = weights[expert]
        logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def rounding(model: PreTrainedModel) -> float:
    """What sums of HIDDEN products in float32 may be off by: sqrt(n) roundings of the product of the norms.

    A normalized row's norm is about sqrt(HIDDEN).
    """
    gate = model.model.layers[0].mlp.gate.weight.detach()
    return math.sqrt(HIDDEN) * 2.0**-24 * float(gate[0].norm()) * math.sqrt(HIDDEN)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("apart", [1e-6, 1e-3, 1.0])
def test_a_row_goes_to_the_lesser_expert_only_where_both_are_equal_within_rounding(
    apart: float, backend: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path, apart)
    ids = torch.randint(0, 97, (ROWS,), generator=torch.Generator().manual_seed(1)).tolist()
    margin, bound = margins(exact(folder), ids), rounding(exact(folder))
    ours = make_engine(folder, backend=backend).logits(ids)
    went_to = [
        (ours - logits_with(exact(folder), ids, expert)).abs().amax(1) <= TOLERANCE for expert in (0, 1)
    ]
    assert (went_to[0] ^ went_to[1]).all()
    lesser = torch.where(margin > 0, went_to[1], went_to[0])
    assert (margin.abs()[lesser] <= bound).all()
    ties = int((margin.abs() <= bound).sum())
    assert (ties == ROWS) if apart == 1e-6 else (ties < ROWS // 10)
