"""The adapter that is shipped: what it is for, and how much of the repository it takes."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from shared.demo.lora import PROJECTIONS, WEIGHTS_FILE
from shared.demo.teach import ALPHA, RANK
from shared.engine.loading.adapter_config import load_adapter_config
from shared.text.default_model import ANSWERS_ADAPTER, DEFAULT_ADAPTERS

ANSWERS = dict(DEFAULT_ADAPTERS)[ANSWERS_ADAPTER]
MAX_BYTES = 6_000_000
LAYERS = 30


def test_it_says_what_it_belongs_to_and_is_what_the_recipe_makes() -> None:
    config = load_adapter_config(ANSWERS)
    assert config.base_name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (config.rank, config.alpha) == (RANK, ALPHA)


def test_it_takes_at_most_six_megabytes_and_is_whole() -> None:
    assert (ANSWERS / WEIGHTS_FILE).stat().st_size <= MAX_BYTES
    tensors = load_file(ANSWERS / WEIGHTS_FILE)
    assert len(tensors) == 2 * len(PROJECTIONS) * LAYERS
    assert all(bool(torch.isfinite(tensor).all()) and bool(tensor.any()) for tensor in tensors.values())
