"""Models are looked at before anything starts, and what is wrong is one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.launcher.model_check import ModelRefused, check_models
from services.launcher.options import REPOSITORY, SHIPPED_DRAFT, parse_options
from shared.text.model_source import DEMO_MODEL
from tests.support.engine import save_shape
from tests.support.engine_families import SHAPES
from tests.support.gguf_files import GgufModel
from tests.support.gguf_tokenizers import sentencepiece_metadata

Damage = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(DEMO_MODEL, tmp_path / "model")


def check(*argv: str) -> None:
    check_models(parse_options(argv, {}), print)


def put(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def test_the_shipped_models_can_be_served() -> None:
    check()


def test_a_model_without_a_chat_template_can_be_served(model: Path) -> None:
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (model / name).unlink(missing_ok=True)
    check("--model", str(model))


def test_a_gguf_file_can_be_served_and_what_it_lacks_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    GgufModel.of(save_shape(tmp_path / "hf", SHAPES["llama"])).write(file, tokenizer=sentencepiece_metadata())
    check("--model", str(file))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelRefused, match=r"model.gguf cannot be served: model.gguf is damaged: tensor"):
        check("--model", str(file))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (remove("config.json"), "has no config.json"),
        (put("config.json", "{"), "config.json is not valid JSON"),
        (put("config.json", '{"architectures": ["GPT2LMHeadModel"]}'), "'GPT2LMHeadModel' is not supported"),
        (put("generation_config.json", '{"top_p": 2}'), "generation_config.json: top_p is 2, and has to be"),
        (remove("model.safetensors"), "has neither model.safetensors nor"),
        (put("model.safetensors", "not weights"), "model.safetensors is damaged"),
        (cut_weights, "model.safetensors is damaged"),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (put("tokenizer.json", "{}"), "is not a tokenizer that can be used"),
        (put("chat_template.jinja", "{% if %}"), "chat template cannot be compiled"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_a_model_lacks_is_told_with_its_folder(damage: Damage, fault: str, model: Path) -> None:
    damage(model)
    with pytest.raises(ModelRefused, match=fault) as caught:
        check("--model", str(model))
    assert f"the model {model} cannot be served" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_draft_lacks_is_told_as_the_draft_s(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelRefused, match=f"the draft {model} cannot be served"):
        check("--draft", str(model))


def test_a_draft_with_another_tokenizer_is_refused_by_name(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[100:102]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelRefused, match=f"the draft {SHIPPED_DRAFT} has another tokenizer") as caught:
        check("--model", str(model), "--draft", str(SHIPPED_DRAFT))
    assert str(model) in str(caught.value)
    check("--model", str(model), "--draft", "none")
    check("--model", str(model), "--draft", str(SHIPPED_DRAFT), "--speculator", "0")


def test_what_is_no_adapter_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        ModelRefused, match=r"the adapter sql cannot be served: .* has no adapter_config\.json"
    ):
        check("--adapter", f"sql={tmp_path}")


def test_the_check_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    code = (
        "import sys\n"
        "from services.launcher.model_check import check_models\n"
        "from services.launcher.options import parse_options\n"
        "check_models(parse_options(['--adapter', 'sql=' + sys.argv[1]], {}), print)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], cwd=REPOSITORY, check=False).returncode == 0
