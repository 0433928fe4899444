"""A config.json that no model can have ends in a sentence that names the field, not in a crash."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

from shared.config.fields import ConfigError
from shared.engine import load_model_config
from shared.engine.core_arbiter import WorkClass
from shared.engine.loading import config as config_module
from shared.engine.torch_backend.rope import rope_table
from shared.errors import InvalidRequest
from shared.worker.config import EngineServiceConfig
from shared.worker.engine_builder import build_engine
from tests.support.engine import save_random_model
from tests.support.engine_families import BASE_FIELDS, SHAPES

CONFIG = "config.json"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 64}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers must be an integer"),
        ({"max_position_embeddings": 10**400}, "max_position_embeddings must be an integer"),
        ({"head_dim": 2**30}, "no memory for 8 KV blocks"),
        ({"head_dim": 10**30}, "head_dim must be an integer"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a positive number"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor must be a positive number"),
        ({"rope_parameters": YARN | {"factor": 1e308}}, "factor must be a positive number"),
        ({"rope_parameters": YARN | {"factor": 1e9}}, "yarn stretches 64 tokens by 1e\\+09"),
        ({"rope_parameters": YARN | {"factor": 4.0, "beta_fast": 1e308}}, "beta_fast must be"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 1e308}}, "factor must be a positive number"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 10**30},
            "sliding_window must be an integer",
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 10**6},
            "1000000 experts in each of 3 layers",
        ),
        ({"hidden_act": ["silu"]}, "hidden_act .* is not supported"),
        ({"dtype": [["float32"]]}, "dtype is .*; choose"),
        ({"architectures": ["x" * 10_000]}, "architecture 'x+\\.\\.\\.x+' is not supported"),
    ],
)
def test_a_service_stops_with_a_sentence(folder: Path, fields: dict[str, Any], sentence: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    config = EngineServiceConfig(kv_blocks=8, max_sequences=4)
    with pytest.raises(ConfigError, match=sentence) as caught:
        build_engine(config, folder, "m", work_class=WorkClass.DECODE)
    assert len(str(caught.value)) < 1000


def test_json_that_is_nested_too_deeply_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        load_model_config(folder)


HOSTILE: tuple[Any, ...] = (
    10**12, 10**30, 2**31 - 1, 10**400, -1, 0, 1.5, 1e308, 1e-310, float("inf"), float("nan"), -1e30,
    "x", [], {}, [[1]], [{}], True, None,
)  # fmt: skip


def variants(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """`fields` with each value in turn replaced by each hostile one, in nested objects too."""
    changed = [{**fields, name: value} for name in fields for value in HOSTILE]
    for name, part in fields.items():
        if isinstance(part, dict):
            changed += [{**fields, name: each} for each in variants(part)]
    return changed


@pytest.mark.thorough(
    but="llama | mistral | ministral3 | qwen2 | qwen3 | qwen2 moe | qwen3 moe | mixtral | gemma2 | "
    "gemma3 | phi3 | glm4 | glm4 moe | cohere2 | olmo2 | olmo3 | exaone4 | granite | granite 4 | "
    "smollm3 | gpt-oss | deepseek v2 | deepseek v3"
)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_field_of_a_family_fails_in_any_other_way(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ""
    # Hundreds of files would take longer to write than to read; what is no JSON is for others to see.
    monkeypatch.setattr(
        config_module, "read_json_object", lambda path: json.loads(text) if path.name == CONFIG else None
    )
    architecture = NAMES[SHAPES[shape].config_class.model_type]
    known = {"architectures": [architecture], "dtype": "float32", "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    for changed in variants({**known, **BASE_FIELDS, **SHAPES[shape].fields}):
        text = json.dumps(changed)
        with suppress(InvalidRequest):
            model = load_model_config(tmp_path)
            ropes = {layer.rope for layer in model.layers if layer.rope is not None}
            for rope in ropes:
                rope_table(rope, model.head_dim, 4, torch.float32)
