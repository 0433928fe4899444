"""What a model's makers say of sampling is read as they mean it, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from shared.errors import InvalidRequest
from shared.sampling.defaults import SamplingDefault
from shared.text.default_model import packaged_file
from shared.text.model_sampling import GGUF_KEYS, served_sampling
from shared.text.model_source import DEMO_MODEL, ModelSource, resolve_model

CONFIG = "generation_config.json"
Said = dict[str, tuple[float, str]]


def said(defaults: tuple[SamplingDefault, ...]) -> Said:
    return {each.name: (each.value, each.source) for each in defaults}


def of_config(folder: Path, fields: object, *words: str) -> Said:
    (folder / CONFIG).write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return said(served_sampling(ModelSource(folder, "m"), words))


def of_gguf(folder: Path, metadata: dict[str, Any], *words: str) -> Said:
    writer = GGUFWriter(folder / "m.gguf", "llama")
    for key, value in metadata.items():
        (writer.add_int32 if isinstance(value, int) else writer.add_float32)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return said(served_sampling(ModelSource(folder / "m.gguf", "m"), words))


def test_a_generation_config_is_taken_field_by_field(tmp_path: Path) -> None:
    fields = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05}
    found = of_config(
        tmp_path, {**fields, "repetition_penalty": 1.05, "max_new_tokens": 9, "eos_token_id": 1}
    )
    assert found == {
        "temperature": (0.6, CONFIG),
        "top_p": (0.95, CONFIG),
        "top_k": (20.0, CONFIG),
        "min_p": (0.05, CONFIG),
        "repetition_penalty": (1.05, CONFIG),
    }


def test_a_model_without_one_says_nothing(tmp_path: Path) -> None:
    assert served_sampling(ModelSource(tmp_path, "m"), ()) == ()


def test_the_demo_model_draws_as_openai_does() -> None:
    assert served_sampling(ModelSource(DEMO_MODEL, "m"), ()) == ()


def test_a_model_that_is_not_to_be_sampled_is_greedy(tmp_path: Path) -> None:
    found = of_config(tmp_path, {"do_sample": False, "temperature": 0.7})
    assert found == {"temperature": (0.0, f"{CONFIG}, do_sample false")}


@pytest.mark.parametrize("fields", [{"do_sample": None, "temperature": None}, {"do_sample": True}, {}])
def test_null_and_what_is_not_there_say_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    assert of_config(tmp_path, fields) == {}


@pytest.mark.parametrize("off", [-1, 0])
def test_both_words_for_no_top_k_are_taken(off: int, tmp_path: Path) -> None:
    assert of_config(tmp_path, {"top_k": off})["top_k"][0] == 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temperature": -0.5}, f"{CONFIG}: temperature is -0.5"),
        ({"temperature": 1e-6}, f"{CONFIG}: temperature is 1e-06"),
        ({"temperature": "0.7"}, "temperature is '0.7'"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": [0.7]}, r"temperature is \[0.7\]"),
        ('{"temperature": NaN}', "temperature is nan"),
        ('{"temperature": 1e999}', "temperature is inf"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": 50.0}, "top_k is 50.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": 1 << 31}, "top_k is 2147483648"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_what_no_request_could_say_is_refused_with_what_to_do(
    fields: object, told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        of_config(tmp_path, fields)
    assert caught.value.message.endswith("mend that, or say default_sampling under [model]")


def test_what_the_configuration_says_is_not_read_of_the_model(tmp_path: Path) -> None:
    wrong = {"temperature": -1, "top_p": 0.8}
    found = of_config(tmp_path, wrong, "temperature=0")
    assert found == {"top_p": (0.8, CONFIG), "temperature": (0.0, "default_sampling")}


def test_openai_leaves_nothing_of_what_the_model_says(tmp_path: Path) -> None:
    found = of_config(tmp_path, "[]", "openai", "top_p=0.5")
    assert found["temperature"] == (1.0, "default_sampling")
    assert found["top_p"] == (0.5, "default_sampling")
    assert len(found) == 7


def test_a_gguf_file_is_taken_by_the_keys_that_llama_cpp_writes(tmp_path: Path) -> None:
    written = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05}
    found = of_gguf(tmp_path, {GGUF_KEYS[name]: value for name, value in written.items()})
    assert found == {name: (float(value), GGUF_KEYS[name]) for name, value in written.items()}


def test_a_gguf_file_without_them_says_nothing(tmp_path: Path) -> None:
    assert of_gguf(tmp_path, {}) == {}


def test_a_gguf_file_s_wrong_value_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^general\.sampling\.top_p: top_p is 7\.0"):
        of_gguf(tmp_path, {"general.sampling.top_p": 7.0})


def test_the_shipped_model_draws_as_its_card_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    file = packaged_file()
    if file is None:
        pytest.skip("SmolLM2 is not installed")
    monkeypatch.setenv("PENSTOCK_DEFAULT_MODEL", str(file))
    found = said(served_sampling(resolve_model(""), ()))
    assert found == {"temperature": (0.2, "the model's card"), "top_p": (0.9, "the model's card")}
