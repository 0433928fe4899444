from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine import LLM
from tests.unit.engine_support import (
    oracle,
    oracle_greedy,
    oracle_logits,
    prompts,
    save_random_model,
    trained_model,
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "one kv head": {"num_key_value_heads": 1},
    "every head its own": {"num_key_value_heads": 6},
    "odd head dim": {"head_dim": 14, "hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 5},
    "heads wider than hidden": {"head_dim": 32, "hidden_size": 36},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "one layer, large eps": {"num_hidden_layers": 1, "rms_norm_eps": 0.01},
    "sharded": {"max_shard_size": "20KB"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, **SHAPES[name])
    reference, llm = oracle(folder), LLM(folder, kv_blocks=32, max_batch_tokens=64)
    for prompt in prompts(4, 97, longest=130):
        difference = (llm.logits(prompt) - oracle_logits(reference, prompt)).abs().max()
        assert difference <= 1e-4
        assert llm.logits(prompt)[-1].argmax().item() == oracle_greedy(reference, prompt, 1)[0]
    llm.engine.check()
    assert llm.engine.held() == {}


def test_the_trained_model_matches_transformers_up_to_its_context_limit() -> None:
    folder = trained_model()
    if folder is None:
        pytest.skip("the shared test data is not here")
    llm = LLM(folder)
    (prompt,) = prompts(1, 512, longest=1)
    prompt = (prompt * 512)[:512]
    assert (llm.logits(prompt) - oracle_logits(oracle(folder), prompt)).abs().max() <= 1e-4


def test_bfloat16_stays_within_its_own_rounding(tmp_path: Path) -> None:
    """Against fp32 on the same bf16 weights, the engine errs no more than transformers in bf16 does."""
    folder = save_random_model(tmp_path, dtype=torch.bfloat16)
    llm = LLM(folder)
    assert llm.engine.model_config.dtype == "bfloat16"
    exact_model, rounded_model = oracle(folder), oracle(folder, torch.bfloat16)
    ours, theirs = [], []
    for prompt in prompts(8, 97):
        exact = oracle_logits(exact_model, prompt)
        ours.append((llm.logits(prompt) - exact).square().mean().sqrt())
        theirs.append((oracle_logits(rounded_model, prompt) - exact).square().mean().sqrt())
    assert sum(ours) <= 1.25 * sum(theirs)


def test_a_bfloat16_checkpoint_runs_in_float32_when_asked(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, dtype=torch.bfloat16)
    prompt = prompts(1, 97)[0]
    difference = LLM(folder, dtype="float32").logits(prompt) - oracle_logits(oracle(folder), prompt)
    assert difference.abs().max() <= 1e-4
