"""The draft head that ships: for one model, whole, of a known size, and no answer is another one with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.decode.config import DecodeConfig
from shared.engine import LLM, SamplingParams
from shared.engine.draft_head.config import CONFIG_FILE, WEIGHTS_FILE
from shared.engine.draft_head.shipped import SHIPPED_HEAD, TARGET_DIGEST, shipped_head
from shared.text.default_model import FILE_BYTES, packaged_file

MAX_BYTES = 19_000_000


def packaged() -> Path:
    file = packaged_file()
    if file is None:
        pytest.skip("the model that ships is not installed")
    return file


def test_it_is_whole_and_takes_at_most_nineteen_megabytes() -> None:
    assert (SHIPPED_HEAD / WEIGHTS_FILE).stat().st_size <= MAX_BYTES
    assert json.loads((SHIPPED_HEAD / CONFIG_FILE).read_text())["target"]["digest"] == TARGET_DIGEST


def test_it_is_for_the_model_that_ships_wherever_that_lies(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(packaged())
    assert shipped_head(packaged()) == shipped_head(tmp_path / "model.gguf") == SHIPPED_HEAD


def test_another_model_has_none(tmp_path: Path) -> None:
    assert shipped_head(tmp_path) is None
    other = tmp_path / "other.gguf"
    other.write_bytes(packaged().read_bytes()[:-1] + b"\1")
    assert shipped_head(tmp_path / "missing.gguf") is None
    with other.open("r+b") as file:
        file.truncate(FILE_BYTES - 1)
    assert shipped_head(other) is None


@pytest.mark.parametrize(
    ("fields", "head"),
    [
        ({}, str(SHIPPED_HEAD)),
        ({"draft_head": "none"}, ""),
        ({"draft_head": "/a/head"}, "/a/head"),
        ({"device": "cuda"}, ""),
        ({"tensor_parallel": 2}, ""),
    ],
    ids=["auto", "none", "another", "on a GPU", "in several processes"],
)
def test_decode_takes_the_head_that_its_settings_name(fields: dict[str, object], head: str) -> None:
    assert DecodeConfig(**fields).engine_config(packaged()).draft_head == head  # type: ignore[arg-type]  # of any field


def test_answers_are_the_same_with_it() -> None:
    prompt = list(range(300, 340))
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    said = []
    for head in ("", str(SHIPPED_HEAD)):
        llm = LLM(packaged(), threads=1, max_model_len=256, ngram_tokens=0, draft_head=head)
        said.append(llm.generate([prompt], [params])[0].token_ids)
    assert said[0] == said[1]
