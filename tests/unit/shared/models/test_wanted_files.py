"""Which files make up a model."""

from __future__ import annotations

import pytest

from shared.errors import InvalidRequest
from shared.models.wanted_files import MAX_MODEL_FILES, wanted_files

PARTS = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]


def test_a_checkpoint_is_its_weights_configuration_tokenizer_and_card() -> None:
    names = ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "README.md"]
    others = ["pytorch_model.bin", "model.gguf", "onnx/model.onnx", "script.py", "LICENSE", ".gitattributes"]
    assert wanted_files(names + others, "org/m") == tuple(sorted(names))


@pytest.mark.parametrize(
    "name", ["../x.json", "/etc/x.json", "a/b.json", "x\n.json", ".json", "-x.json", "x\x1b.json", "x" * 201]
)
def test_names_that_are_not_of_a_file_in_the_folder_itself_are_left_out(name: str) -> None:
    assert wanted_files([name, "m.safetensors"], "org/m") == ("m.safetensors",)


def test_of_gguf_files_all_parts_of_one_model_are_taken_or_it_is_asked_which() -> None:
    assert wanted_files(["m.Q4_0.gguf", "config.json", "README.md"], "o/m") == ("m.Q4_0.gguf", "README.md")
    assert wanted_files(PARTS, "o/m") == tuple(PARTS)
    with pytest.raises(
        InvalidRequest, match=r"o/m has 2 GGUF models: a\.gguf, b\.gguf; say which with --file"
    ):
        wanted_files(["a.gguf", "b.gguf"], "o/m")
    assert wanted_files(["a.gguf", "b.gguf"], "o/m", "b.gguf") == ("b.gguf",)
    assert wanted_files(["a.gguf", *PARTS], "o/m", PARTS[1]) == tuple(PARTS)
    assert wanted_files(["a.gguf", "m.safetensors"], "o/m", "a.gguf") == ("a.gguf",)


@pytest.mark.parametrize(
    ("names", "pick", "sentence"),
    [
        ([], "", "has neither safetensors nor a GGUF file"),
        (["pytorch_model.bin"], "", "has neither safetensors nor a GGUF file"),
        (PARTS[:1], "", "lacks m-00002-of-00002.gguf: all 2 parts"),
        (["a.gguf"], "c.gguf", "has no GGUF file 'c.gguf' with"),
        (["a.gguf"], "../a.gguf", "has no GGUF file '../a.gguf'"),
    ],
)
def test_where_there_is_no_model_it_is_said_why(names: list[str], pick: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence.replace("(", r"\(").replace(".", r"\.")):
        wanted_files(names, "o/m", pick)


def test_so_many_files_are_the_most() -> None:
    names = [f"{number}.safetensors" for number in range(MAX_MODEL_FILES + 1)]
    assert len(wanted_files(names[:-1], "o/m")) == MAX_MODEL_FILES
    with pytest.raises(InvalidRequest, match=f"a model has at most {MAX_MODEL_FILES}"):
        wanted_files(names, "o/m")
