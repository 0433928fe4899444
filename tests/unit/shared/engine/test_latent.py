"""Multi-head latent attention: at the widths of checkpoints that are served, and in every form of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig, PreTrainedConfig

from shared.engine import Engine
from shared.engine.batch import Batch, Span
from shared.engine.memory.kv_pool import KvPool
from tests.support.engine import (
    admit,
    drive,
    logits_by_path,
    make_engine,
    oracle,
    oracle_logits,
    prompts,
    save_random_model,
    save_shape,
    tables_in,
    undisturbed,
)
from tests.support.engine_families import SHAPES

TOLERANCE = 1e-4
ROWS = (1, 2, 16, 17, 65, 200)
ONE_LAYER: dict[str, Any] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 1,
    "hidden_size": 256,
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
# Heads, ranks and widths of a head as published.
V2_LITE = {"num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512}
V3 = {"num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512}
FLASH = {"num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512}
DEEPSEEK_HEAD = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
FLASH_HEAD = {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
PUBLISHED: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "DeepSeek-V2-Lite": (DeepseekV2Config, {**V2_LITE, **DEEPSEEK_HEAD}),
    "DeepSeek-V3": (DeepseekV3Config, {**V3, **DEEPSEEK_HEAD}),
    "GLM-4.7-Flash": (Glm4MoeLiteConfig, {**FLASH, **FLASH_HEAD}),
}


def save_published(folder: Path, name: str) -> Path:
    """One layer, whose weights are small enough for sums of as many products."""
    config_class, fields = PUBLISHED[name]
    return save_random_model(folder, config_class, **{**ONE_LAYER, **fields})


def logits_of(engine: Engine, tokens: list[int]) -> torch.Tensor:
    """float32 [len(tokens), vocab], with NaN in whatever of the pool they do not write."""
    pool: KvPool = vars(engine._model)["_pool"]
    pool.data.fill_(0xFF)
    span = Span(0, len(tokens), tables_in(pool, range(1, 64, 2)))
    return engine._model.forward(Batch(tokens, [span], range(len(tokens)))).clone()


@pytest.mark.thorough(but="GLM-4.7-Flash | DeepSeek-V2-Lite")
@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_at_published_widths_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = save_published(tmp_path, name)
    engine, reference = make_engine(folder), oracle(folder)
    for count in ROWS:
        tokens = [(31 * place + count) % 97 for place in range(count)]
        expected = oracle_logits(reference, tokens)
        error = (logits_of(engine, tokens) - expected).abs().max()
        assert error <= TOLERANCE * expected.abs().max(), count


@pytest.mark.thorough(but="DeepSeek-V2-Lite")
@pytest.mark.parametrize("name", ["DeepSeek-V2-Lite", "GLM-4.7-Flash"])
def test_a_row_at_published_widths_is_bitwise_the_same_on_every_path(name: str, tmp_path: Path) -> None:
    engine = make_engine(save_published(tmp_path, name), deterministic=True)
    tokens, others = ([(step * place) % 97 for place in range(40)] for step in (31, 17))
    whole, *paths = logits_by_path(engine._model, tokens, others).values()
    assert all(torch.equal(logits, whole) for logits in paths)


@pytest.mark.parametrize("fields", [{"quantization": "int8"}, {"kv_dtype": "int8"}])
def test_rounded_weights_and_rounded_kv_stay_near(fields: dict[str, str], tmp_path: Path) -> None:
    folder = save_shape(tmp_path, SHAPES["deepseek v3"])
    exact, rounded = make_engine(folder), make_engine(folder, **fields)
    errors = [(rounded.logits(ids) - exact.logits(ids)).square().mean() for ids in prompts(8, 97)]
    spread = torch.cat([exact.logits(ids) for ids in prompts(8, 97)]).std()
    assert torch.stack(errors).mean().sqrt() < 0.1 * spread


@pytest.mark.thorough(but="False")
@pytest.mark.parametrize("offloaded", [False, True])
def test_answers_survive_preemption(offloaded: bool, tmp_path: Path) -> None:
    folder = save_shape(tmp_path, SHAPES["deepseek v3"])
    asked = {f"s{index}": ids for index, ids in enumerate(prompts(6, 97, seed=3))}
    alone = {key: undisturbed(folder, ids) for key, ids in asked.items()}
    tight = make_engine(folder, kv_blocks=14, offload_memory_mb=4 if offloaded else 0)
    for key, ids in asked.items():
        admit(tight, key, ids)
    assert drive(tight, {key: list(ids) for key, ids in asked.items()}) == alone
