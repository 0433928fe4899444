"""What a model is, from its files."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from gguf import GGUFWriter

from shared.models.model_facts import MAX_CARD_BYTES, ModelFacts, quantization_of, read_model_facts
from shared.text.model_source import DEMO_MODEL, ModelSource
from tests.support.engine import save_shape
from tests.support.engine_families import SHAPES
from tests.support.gguf_files import GgufModel
from tests.support.gguf_tokenizers import sentencepiece_metadata


def facts_of(path: Path) -> ModelFacts:
    return read_model_facts(ModelSource(path, path.name))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


def test_a_checkpoint_is_told_with_shapes_tokenizer_and_template(checkpoint: Path) -> None:
    facts = facts_of(checkpoint)
    assert (facts.model_format, facts.quantization, facts.architecture) == (
        "safetensors",
        "BF16",
        "LlamaForCausalLM",
    )
    assert (facts.parameters, facts.layers, facts.context_tokens) == (4985088, 8, 2048)
    assert (facts.vocab_tokens, facts.has_chat_template, facts.tool_format) == (4096, True, "hermes")
    assert (facts.licence, facts.trouble) == ("", "")


def test_a_gguf_file_is_told_too(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    model = GgufModel.of(save_shape(tmp_path / "hf", SHAPES["llama"]))
    held = model.write(file, "F16", tokenizer=sentencepiece_metadata())
    facts = facts_of(file)
    assert (facts.model_format, facts.quantization, facts.architecture) == (
        "gguf",
        "F16",
        "LlamaForCausalLM",
    )
    assert facts.parameters == sum(tensor.size for tensor in held.values())
    assert facts.trouble == ""


def test_a_gguf_file_says_its_licence_itself(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_license("mit")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert facts_of(tmp_path / "m.gguf").licence == "mit"


def test_a_packed_checkpoint_is_told_by_its_method_and_has_no_count(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (checkpoint / "config.json").write_text(json.dumps(config))
    facts = facts_of(checkpoint)
    assert (facts.quantization, facts.parameters) == ("gptq-4", 0)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\ntext", "apache-2.0"),
        ("---\r\ntags: []\r\nlicense: 'mit'\r\n---\r\n", "mit"),
        ("license: mit", ""),
        ("---\nlicense: mit", ""),
        ("---\nother: x\n---\nlicense: mit", ""),
        ("---\nlicense: \x1b[31mred\n---\n", ""),
        ("---\nlicense: " + "x" * 65 + "\n---\n", ""),
        ("---\n" + "a: b\n" * MAX_CARD_BYTES + "license: mit\n---\n", ""),
        ("\xff\xfe---", ""),
    ],
)
def test_a_licence_is_what_the_head_of_the_card_says(checkpoint: Path, card: str, licence: str) -> None:
    (checkpoint / "README.md").write_bytes(card.encode("latin-1"))
    assert facts_of(checkpoint).licence == licence


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x00",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 7}',
        struct.pack("<Q", 2) + b"{",
    ],
)
def test_weights_that_are_damaged_are_the_trouble_of_the_model(checkpoint: Path, header: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(header)
    assert "model.safetensors is damaged" in facts_of(checkpoint).trouble
    assert quantization_of(checkpoint, ["model.safetensors"]) == "?"


def test_what_no_file_says_is_the_trouble_of_the_model(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    assert "no config.json" in facts_of(checkpoint).trouble
