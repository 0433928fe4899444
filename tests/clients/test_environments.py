"""What happens where a program cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.environments import make_environment


def requirements(folder: Path, *lines: str) -> Path:
    file = folder / "requirements.txt"
    file.write_text("\n".join(lines))
    return file


def test_without_an_index_tests_are_skipped_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("WHEELS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no package index is at hand: .*guidellm"):
        make_environment(tmp_path / "environment", requirements(tmp_path, "guidellm==0.8.1"))


def test_requirements_that_do_not_go_together_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="conflicting dependencies"):
        make_environment(tmp_path / "environment", requirements(tmp_path, "pip==25.0", "pip==25.1"))
