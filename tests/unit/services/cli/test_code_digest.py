"""Whether the code on the disk is the same as before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.fleet.code_digest import code_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("services", "shared", "tests"):
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "inner" / "module.py").write_text("x = 1\n")
    return tmp_path


def grown(root: Path) -> None:
    (root / "shared/inner/module.py").write_text("x = 10\n")


def touched(root: Path) -> None:
    os.utime(root / "services/inner/module.py", ns=(1, 1))


def with_a_library(root: Path) -> None:
    (root / "shared/kernels.so").write_bytes(b"")


@pytest.mark.parametrize("change", [grown, touched, with_a_library])
def test_a_change_of_the_code_changes_it(root: Path, change: Callable[[Path], None]) -> None:
    before = code_digest(root)
    change(root)
    assert code_digest(root) != before


def test_tests_and_pages_are_no_code(root: Path) -> None:
    before = code_digest(root)
    (root / "tests/inner/module.py").write_text("x = 10\n")
    (root / "shared/README.md").write_text("# Shared\n")
    assert code_digest(root) == before
