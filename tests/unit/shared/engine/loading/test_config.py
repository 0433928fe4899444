from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.engine import EngineConfig, load_model_config
from shared.engine.engine_config import max_model_len
from shared.engine.loading.config import LayerConfig, RopeConfig
from shared.errors import InvalidRequest, NotFound

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "max_position_embeddings": 128,
    "dtype": "float32",
    "eos_token_id": 2,
}


def write(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_absent_fields_take_the_architectures_defaults(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path))
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert config.layers == (LayerConfig(RopeConfig(10000.0, 16, original_max_position_tokens=128)),) * 2
    assert not config.tie_word_embeddings


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, {"eos_token_id": [7, 2, 99]}))
    assert config.eos_token_ids == (2, 7)


def test_the_old_spelling_of_dtype_and_rope_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        dtype=None,
        torch_dtype="bfloat16",
        rope_theta=5000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    config = load_model_config(tmp_path)
    assert config.dtype == "bfloat16"
    assert config.layers[0].rope == RopeConfig(
        5000.0, 16, "linear", factor=2.0, original_max_position_tokens=128
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"architectures": ["BertForMaskedLM"]},
            "'BertForMaskedLM' is not supported; use one of Llama.*Qwen3Moe",
        ),
        (
            {"architectures": ["MambaForCausalLM"]},
            "MambaForCausalLM is not supported: Mamba layers keep a state",
        ),
        ({"architectures": None}, "architecture None"),
        ({"quantization_config": {"quant_method": "gguf", "bits": 4}}, "quantized with 'gguf' at 4 bits"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3}},
            "4 bits, compressed-tensors, fp8",
        ),
        ({"quantization_config": "gptq"}, "quantized with None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "su"}}, "rope type 'su'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "cannot scale so small a rope"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"dtype": "float64"}, "choose dtype"),
        ({"eos_token_id": "x"}, "eos_token_id"),
    ],
)
def test_a_model_that_cannot_run_is_refused_by_what_is_wrong(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        load_model_config(write(tmp_path, **changes))


def test_an_unsupported_architecture_is_refused_before_weights_are_looked_for(tmp_path: Path) -> None:
    from shared.engine import Engine  # noqa: PLC0415  (keeps this module's other tests free of torch)

    write(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(InvalidRequest, match="MambaForCausalLM"):
        Engine(EngineConfig(str(tmp_path)))


def test_missing_directories_and_files_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"no config\.json"):
        load_model_config(tmp_path)


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        load_model_config(tmp_path)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'int3'"):
        load_model_config(write(tmp_path), "int3")


def test_the_longest_sequence_is_bounded_by_model_setting_and_pool(tmp_path: Path) -> None:
    model = load_model_config(write(tmp_path))
    assert max_model_len(EngineConfig("", kv_blocks=100), model) == 128
    assert max_model_len(EngineConfig("", kv_blocks=4), model) == 64
    assert max_model_len(EngineConfig("", max_model_len=50), model) == 50


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"max_model_len": 129}, "from 0 to"), ({"max_model_len": 65}, "raise kv_memory_mb")],
)
def test_an_impossible_length_is_refused(fields: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        max_model_len(EngineConfig("", kv_blocks=4, **fields), load_model_config(write(tmp_path)))


@pytest.mark.parametrize("field", ["kv_blocks", "max_batch_tokens", "max_sequences"])
def test_an_engine_of_nothing_is_refused(field: str) -> None:
    nothing: dict[str, Any] = {field: 0}
    with pytest.raises(InvalidRequest, match=field):
        replace(EngineConfig(""), **nothing).validate()


def test_a_batch_smaller_than_its_sequences_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="needs a row in every step"):
        EngineConfig("", max_batch_tokens=8, max_sequences=9).validate()


def test_a_float16_checkpoint_is_computed_in_bfloat16_unless_told_otherwise(tmp_path: Path) -> None:
    folder = write(tmp_path, dtype="float16")
    assert load_model_config(folder).dtype == "bfloat16"
    assert load_model_config(folder, "float32").dtype == "float32"
