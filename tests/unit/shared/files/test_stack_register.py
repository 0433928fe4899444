"""Which stacks of this user run, as their launchers have written it down."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from tests.support.launcher_lock import held_lock

Make = Callable[..., Path]
NO_PROCESS = 2**31 - 2


@pytest.fixture(autouse=True)
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return register_folder()


@pytest.fixture
def stack() -> Iterator[Make]:
    """Make a state directory whose launcher runs, with that in its lock, until the end of the test."""
    with ExitStack() as locks:

        def make(folder: Path, content: object = None) -> Path:
            folder.mkdir()
            locks.enter_context(held_lock(folder, content))
            register_stack(folder)
            return folder

        yield make


def test_without_any_there_is_none() -> None:
    assert running_stacks() == ()


def test_those_that_run_are_found_and_entries_of_others_removed(
    tmp_path: Path, register: Path, stack: Make
) -> None:
    first, second = stack(tmp_path / "b"), stack(tmp_path / "a")
    stack(tmp_path / "dead", NO_PROCESS)
    stack(tmp_path / "odd", "no number")
    assert running_stacks() == (second, first)
    assert len(list(register.iterdir())) == 2


def test_one_that_has_ended_is_forgotten(tmp_path: Path, stack: Make) -> None:
    ended = stack(tmp_path / "a")
    forget_stack(ended)
    forget_stack(ended)
    assert running_stacks() == ()


def test_the_entries_are_their_owner_s_alone(tmp_path: Path, register: Path, stack: Make) -> None:
    stack(tmp_path / "a")
    (entry,) = register.iterdir()
    assert stat.S_IMODE(register.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_no_more_entries_are_looked_at_than_there_may_be(tmp_path: Path, stack: Make) -> None:
    for number in range(MAX_STACKS + 1):
        stack(tmp_path / f"{number:03}")
    assert len(running_stacks()) == MAX_STACKS


@pytest.mark.parametrize("content", ["", "-", "99999999999999999999", str(NO_PROCESS)])
def test_a_lock_that_names_no_process_is_of_no_launcher(tmp_path: Path, content: str) -> None:
    with held_lock(tmp_path, content):
        assert launcher_of(tmp_path) is None


def test_a_launcher_is_who_holds_the_lock_and_not_who_has_got_the_number_that_it_left(
    tmp_path: Path, stack: Make
) -> None:
    running = stack(tmp_path / "running")
    killed = tmp_path / "killed"
    killed.mkdir()
    with held_lock(killed):
        register_stack(killed)
        assert launcher_of(killed) == os.getpid()
        assert running_stacks() == (killed, running)
    assert (killed / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    assert launcher_of(killed) is None
    assert running_stacks() == (running,)


def test_where_nothing_is_or_nobody_may_look_no_launcher_is(tmp_path: Path) -> None:
    assert launcher_of(tmp_path / "nothing") is None
    (tmp_path / LOCK_NAME).mkdir()
    assert launcher_of(tmp_path) is None
