"""Which stack a command talks to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.cli.stack_file import DEFAULT_STATE_DIR, STACK_NAME, NoStack, chosen_state_dir, find_state_dir
from shared.files.stack_register import register_stack
from tests.support.launcher_lock import held_lock

Start = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def running() -> Iterator[Start]:
    """Make a state directory whose stack runs until the end of the test."""
    with ExitStack() as locks:

        def start(folder: Path) -> Path:
            folder.mkdir()
            locks.enter_context(held_lock(folder))
            (folder / STACK_NAME).write_text("{}")
            register_stack(folder)
            return folder

        yield start


def test_the_directory_that_is_named_wins(tmp_path: Path, running: Start) -> None:
    running(tmp_path / "a")
    assert find_state_dir(tmp_path / "other", "--x") == tmp_path / "other"


def test_the_stack_of_this_directory_wins_over_others(tmp_path: Path, here: Path, running: Start) -> None:
    running(tmp_path / "a")
    running(here / DEFAULT_STATE_DIR)
    assert find_state_dir(None, "--x") == DEFAULT_STATE_DIR


def test_the_only_one_is_found_from_anywhere(tmp_path: Path, running: Start) -> None:
    assert find_state_dir(None, "--x") == DEFAULT_STATE_DIR
    running(tmp_path / "a")
    assert find_state_dir(None, "--x") == tmp_path / "a"


def test_of_several_the_error_names_all(tmp_path: Path, running: Start) -> None:
    running(tmp_path / "a"), running(tmp_path / "b")
    with pytest.raises(NoStack, match=f"2 of your stacks run: {tmp_path / 'a'}, {tmp_path / 'b'}; pass one"):
        find_state_dir(None, "--x")


class Typed:
    """A terminal on which something is typed."""

    def __init__(self, line: str) -> None:
        self._line = line

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._line


@pytest.mark.parametrize(
    ("typed", "chosen"), [("2\n", "b"), ("1\n", "a"), ("3\n", ""), ("", ""), ("x\n", "")]
)
def test_of_several_a_terminal_is_asked_which(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    running: Start,
    typed: str,
    chosen: str,
) -> None:
    running(tmp_path / "a"), running(tmp_path / "b")
    monkeypatch.setattr(sys, "stdin", Typed(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if chosen:
        assert find_state_dir(None, "--x") == tmp_path / chosen
    else:
        with pytest.raises(NoStack, match="is none of them"):
            find_state_dir(None, "--x")
    assert f"2  {tmp_path / 'b'}" in capsys.readouterr().err


def test_a_command_asks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], running: Start
) -> None:
    running(tmp_path / "a"), running(tmp_path / "b")
    monkeypatch.setattr(sys, "stdin", Typed("2\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    args = argparse.Namespace(state_dir=None)
    assert [chosen_state_dir(args, "--x") for _ in range(2)] == [tmp_path / "b"] * 2
    assert capsys.readouterr().err.count("Which stack") == 1
