"""Extensions are used where they were built of sources like these."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from structlog.testing import capture_logs

from shared.built_extension import built_extension

NAME = "shared.an_extension_of_this_test"


@pytest.fixture(autouse=True)
def nothing_found_yet() -> None:
    built_extension.cache_clear()


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(NAME)
    module.ABI = 3  # type: ignore[attr-defined]  # as an extension has it
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def test_one_of_these_sources_is_found(extension: ModuleType) -> None:
    assert built_extension(NAME, 3, "stale") is extension


def test_one_of_other_sources_is_none_and_the_log_says_what_to_do(extension: ModuleType) -> None:
    with capture_logs() as logs:
        assert built_extension(NAME, 4, "extension_stale") is None
    assert [each["event"] for each in logs] == ["extension_stale"]
    assert "make setup" in logs[0]["help"]


def test_one_that_was_not_built_is_none_without_a_word() -> None:
    with capture_logs() as logs:
        assert built_extension(NAME, 3, "extension_stale") is None
    assert not logs
