"""Which stacks of this user run, as their launchers have written it down."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shared.files.stack_register import (
    LOCK_NAME,
    MAX_STACKS,
    forget_stack,
    launcher_of,
    register_folder,
    register_stack,
    running_stacks,
)

NO_PROCESS = 2**31 - 2


@pytest.fixture(autouse=True)
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return register_folder()


def stack(folder: Path, pid: object) -> Path:
    folder.mkdir()
    (folder / LOCK_NAME).write_text(f"{pid}\n")
    register_stack(folder)
    return folder


def test_without_any_there_is_none() -> None:
    assert running_stacks() == ()


def test_those_that_run_are_found_and_entries_of_others_removed(tmp_path: Path, register: Path) -> None:
    first, second = stack(tmp_path / "b", os.getpid()), stack(tmp_path / "a", os.getpid())
    stack(tmp_path / "dead", NO_PROCESS)
    stack(tmp_path / "odd", "no number")
    assert running_stacks() == (second, first)
    assert len(list(register.iterdir())) == 2


def test_one_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    ended = stack(tmp_path / "a", os.getpid())
    forget_stack(ended)
    forget_stack(ended)
    assert running_stacks() == ()


def test_the_entries_are_their_owner_s_alone(tmp_path: Path, register: Path) -> None:
    stack(tmp_path / "a", os.getpid())
    (entry,) = register.iterdir()
    assert stat.S_IMODE(register.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_no_more_entries_are_looked_at_than_there_may_be(tmp_path: Path) -> None:
    for number in range(MAX_STACKS + 1):
        stack(tmp_path / f"{number:03}", os.getpid())
    assert len(running_stacks()) == MAX_STACKS


@pytest.mark.parametrize("content", ["", "-", "99999999999999999999", str(NO_PROCESS)])
def test_a_lock_that_names_no_process_is_of_no_launcher(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    assert launcher_of(tmp_path) is None
