"""What is read as an adapter, and what is refused with which sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.engine import ModelConfig, load_model_config
from shared.engine.loading.adapter import load_adapter_weights
from shared.engine.loading.adapter_config import MAX_ADAPTER_CONFIG_BYTES
from shared.errors import InvalidRequest, NotFound
from tests.support.adapters import adapter_tensors, save_adapter, write_adapter
from tests.support.engine import FAMILIES, save_random_model

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_model_config(save_random_model(tmp_path_factory.mktemp("model")))


def digest_of(folder: Path, config: ModelConfig) -> str:
    return load_adapter_weights(folder, config, 64).digest


def sentence_of(folder: Path, config: ModelConfig, max_rank: int = 64) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_adapter_weights(folder, config, max_rank)
    return caught.value.message


# --- adapter_config.json ---


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"peft_type": None}, "only LORA"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"use_dora": True}, "use_dora is True"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"a_field_of_next_year": {"x": 1}}, "a_field_of_next_year"),
        ({"init_lora_weights": "pissa"}, "path_initial_model_for_weight_conversion"),
        ({"r": 0}, "r must be an integer of at least 1"),
        ({"r": True}, "r must be an integer"),
        ({"lora_alpha": -1}, "lora_alpha must be a positive number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a positive number"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a positive number"),
        ({"use_rslora": "yes"}, "use_rslora must be true or false"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
        ({"rank_pattern": {"q_proj": "8"}}, "rank_pattern must be an integer"),
        ({"alpha_pattern": {"q_proj": "8"}}, "alpha_pattern must be a positive number"),
        ({"alpha_pattern": {"(a+)+$": 8}}, "only names of modules are read"),
        ({"target_modules": [1]}, "target_modules must be names"),
        ({"target_modules": {}}, "target_modules must be names"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_computed_is_refused_by_the_fields_name(
    fields: dict[str, Any], sentence: str, config: ModelConfig, tmp_path: Path
) -> None:
    save_adapter(tmp_path, config, **fields)
    assert sentence in sentence_of(tmp_path, config)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (MAX_ADAPTER_CONFIG_BYTES + 1), "is larger than"),
    ],
    ids=["cut", "no UTF-8", "deep", "a list", "large"],
)
def test_a_configuration_that_is_none_is_refused(
    content: bytes, sentence: str, config: ModelConfig, tmp_path: Path
) -> None:
    save_adapter(tmp_path, config)
    (tmp_path / "adapter_config.json").write_bytes(content)
    assert sentence in sentence_of(tmp_path, config)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_missing_is_named(name: str, config: ModelConfig, tmp_path: Path) -> None:
    save_adapter(tmp_path, config)
    (tmp_path / name).unlink()
    with pytest.raises(NotFound, match=name):
        load_adapter_weights(tmp_path, config, 64)


def test_a_directory_that_is_not_there_is_named(config: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        load_adapter_weights(tmp_path / "nowhere", config, 64)


def test_pickled_weights_are_not_read(config: ModelConfig, tmp_path: Path) -> None:
    save_adapter(tmp_path, config)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(NotFound, match="can run code"):
        load_adapter_weights(tmp_path, config, 64)


# --- adapter_model.safetensors ---


def without(tensors: dict[str, Tensor], *endings: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(endings)}


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda t: without(t, "0.self_attn.q_proj.lora_A.weight"),
            "lacks lora_A of model.layers.0.self_attn",
        ),
        (lambda t: without(t, "2.mlp.up_proj.lora_B.weight"), "lacks lora_B of model.layers.2.mlp.up_proj"),
        (lambda _: {}, "holds no tensors"),
        (lambda t: {**t, "base_model.model.lm_head.weight": torch.ones(2)}, "lm_head.weight', which is no"),
        (lambda t: renamed(t, "layers.0.self_attn.q_proj", "embed_tokens"), "changes 'model.embed_tokens'"),
        (lambda t: renamed(t, "layers.0.mlp.up_proj", "layers.0.mlp.experts.0.up_proj"), "experts cannot"),
        (lambda t: renamed(t, "layers.0", "layers.3"), "of 3 layers can have adapters"),
        (lambda t: renamed(t, "layers.0", "layers.00"), "of 3 layers can have adapters"),
        (lambda t: {**t, f"{Q0}.lora_A.weight": torch.ones(4, 40)}, "have shapes (4, 40) and (48, 4)"),
        (lambda t: {**t, f"{Q0}.lora_B.weight": torch.ones(24, 4)}, "this model needs (r, 48) and (48, r)"),
        (lambda t: {**t, f"{Q0}.lora_B.weight": torch.ones(48, 3)}, "have shapes (4, 48) and (48, 3)"),
        (lambda t: {**t, f"{Q0}.lora_A.weight": torch.ones(())}, "have shapes () and"),
        (
            lambda t: {
                **t,
                f"{Q0}.lora_A.weight": torch.ones(0, 48),
                f"{Q0}.lora_B.weight": torch.ones(48, 0),
            },
            "have shapes (0, 48)",
        ),
        (
            lambda t: {
                **t,
                f"{Q0}.lora_A.weight": torch.ones(5, 48),
                f"{Q0}.lora_B.weight": torch.ones(48, 5),
            },
            "has rank 5, which adapter_config.json does not say",
        ),
        (lambda t: {**t, f"{Q0}.lora_A.weight": torch.ones(4, 48, dtype=torch.int8)}, "weights of I8"),
        (lambda t: {**t, f"{Q0}.lora_A.weight": torch.full((4, 48), torch.nan)}, "no finite numbers"),
        (
            lambda t: {
                **t,
                f"{Q0.replace('model.layers', 'model.language_model.layers')}.lora_A.weight": torch.ones(
                    4, 48
                ),
            },
            "changes one module as",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    change: Any, sentence: str, config: ModelConfig, tmp_path: Path
) -> None:
    write_adapter(tmp_path, change(adapter_tensors(config)))
    assert sentence in sentence_of(tmp_path, config)


def test_another_models_adapter_is_refused_with_the_name_of_its_base(tmp_path: Path) -> None:
    small = load_model_config(save_random_model(tmp_path / "small"))
    large = load_model_config(save_random_model(tmp_path / "large", hidden_size=60))
    save_adapter(tmp_path / "adapter", small, base_model_name_or_path="somebody/small")
    assert "it was trained over 'somebody/small'" in sentence_of(tmp_path / "adapter", large)


def test_experts_are_refused_and_attention_beside_them_is_read(tmp_path: Path) -> None:
    sparse = load_model_config(FAMILIES["mixtral"](tmp_path / "model"))
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    save_adapter(tmp_path / "a", sparse, modules=attention)
    assert load_adapter_weights(tmp_path / "a", sparse, 64).rank == 4
    save_adapter(tmp_path / "b", sparse)
    assert "can have adapters" in sentence_of(tmp_path / "b", sparse)


def test_adapters_of_a_model_with_compressed_kv_are_refused(config: ModelConfig, tmp_path: Path) -> None:
    latent = load_model_config(FAMILIES["deepseek v3"](tmp_path / "model"))
    save_adapter(tmp_path / "adapter", config)
    assert "has multi-head latent attention" in sentence_of(tmp_path / "adapter", latent)


def test_a_target_without_weights_is_refused(config: ModelConfig, tmp_path: Path) -> None:
    save_adapter(tmp_path, config, modules=("q_proj",), target_modules=["q_proj", "v_proj"])
    assert "lacks target module 'v_proj'" in sentence_of(tmp_path, config)


def test_weights_of_what_is_no_target_are_refused(config: ModelConfig, tmp_path: Path) -> None:
    save_adapter(tmp_path, config, modules=("q_proj", "v_proj"), target_modules=["q_proj"])
    assert "v_proj, which is none of target_modules" in sentence_of(tmp_path, config)


@pytest.mark.parametrize(("rank", "fits"), [(8, True), (9, False)])
def test_a_rank_above_the_limit_is_refused(
    rank: int, config: ModelConfig, tmp_path: Path, *, fits: bool
) -> None:
    save_adapter(tmp_path, config, rank=rank)
    if fits:
        assert load_adapter_weights(tmp_path, config, 8).rank == rank
    else:
        assert "has rank 9, above max_adapter_rank 8" in sentence_of(tmp_path, config, 8)


def test_damaged_weights_are_refused_whatever_was_done_to_them(config: ModelConfig, tmp_path: Path) -> None:
    """Cut anywhere, or with some bytes of the header changed: a sentence, or an adapter all the same."""
    save_adapter(tmp_path, config, modules=("q_proj", "down_proj"))
    path = tmp_path / "adapter_model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    random_numbers = random.Random(5)
    cuts = [whole[: random_numbers.randrange(len(whole))] for _ in range(40)]
    changed = []
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(random_numbers.randint(1, 3)):
            damaged[random_numbers.randrange(header)] = random_numbers.randrange(256)
        changed.append(bytes(damaged))
    for content in cuts:
        path.write_bytes(content)
        assert "adapter_model.safetensors is damaged" in sentence_of(tmp_path, config)
    for content in changed:
        path.write_bytes(content)
        try:
            load_adapter_weights(tmp_path, config, 64)
        except InvalidRequest as error:
            assert error.message  # noqa: PT017  # most do, some change nothing that counts


# --- the digest ---


def test_the_digest_is_that_of_what_is_computed(config: ModelConfig, tmp_path: Path) -> None:
    """A description, a directory's name or another spelling of the same scale change nothing."""
    first = digest_of(save_adapter(tmp_path / "a", config), config)
    stated: dict[str, Any] = {"lora_dropout": 0.1, "base_model_name_or_path": "x", "task_type": "CAUSAL_LM"}
    assert digest_of(save_adapter(tmp_path / "b", config, **stated), config) == first
    same_scale: dict[str, Any] = {"use_rslora": True, "lora_alpha": 4.0}  # 8 / 4 = 4 / sqrt(4)
    assert digest_of(save_adapter(tmp_path / "c", config, **same_scale), config) == first
    assert len(bytes.fromhex(first)) == 16


@pytest.mark.parametrize(
    "fields",
    [{"seed": 1}, {"lora_alpha": 9}, {"modules": ("q_proj",)}, {"rank": 5}, {"alpha_pattern": {"q_proj": 1}}],
    ids=str,
)
def test_the_digest_differs_where_what_is_computed_does(
    fields: dict[str, Any], config: ModelConfig, tmp_path: Path
) -> None:
    plain = digest_of(save_adapter(tmp_path / "a", config), config)
    assert digest_of(save_adapter(tmp_path / "b", config, **fields), config) != plain


def test_the_digest_differs_by_a_single_weight(config: ModelConfig, tmp_path: Path) -> None:
    plain = digest_of(save_adapter(tmp_path, config), config)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors[f"{Q0}.lora_B.weight"][47, 3] += 1e-3
    save_file(tensors, path)
    assert digest_of(tmp_path, config) != plain


def test_a_configuration_of_peft_itself_is_read(config: ModelConfig, tmp_path: Path) -> None:
    """With every field that it writes today."""
    from peft import LoraConfig  # noqa: PLC0415  # seconds, for few tests

    save_adapter(tmp_path, config)
    LoraConfig(r=4, lora_alpha=8, target_modules="all-linear").save_pretrained(str(tmp_path))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_version"]
    assert load_adapter_weights(tmp_path, config, 64).rank == 4
