from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.engine import LLM
from tests.unit.engine_support import (
    oracle,
    oracle_logits,
    prompts,
    save_random_model,
    trained_model,
)


def test_the_trained_model_matches_transformers_up_to_its_context_limit() -> None:
    folder = trained_model()
    if folder is None:
        pytest.skip("the shared test data is not here")
    llm = LLM(folder)
    (prompt,) = prompts(1, 512, longest=1)
    prompt = (prompt * 512)[:512]
    assert (llm.logits(prompt) - oracle_logits(oracle(folder), prompt)).abs().max() <= 1e-4


def test_a_bfloat16_checkpoint_runs_in_float32_when_asked(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, dtype=torch.bfloat16)
    prompt = prompts(1, 97)[0]
    difference = LLM(folder, dtype="float32").logits(prompt) - oracle_logits(oracle(folder), prompt)
    assert difference.abs().max() <= 1e-4
