"""The lines of a stack on its terminal and in its log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.launcher.processes.log_lines import LineWriter
from services.launcher.stack_log import MAX_EARLY_LINES, StackLog
from shared.files.rotated_log import LOG_NAME
from tests.support.wait import until


class Terminal:
    """What it shows of a stack's log."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.log = StackLog(LineWriter(self.stream))

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().decode().splitlines()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.log.leave_terminal()
    terminal.log.close_file()


def kept(folder: Path) -> list[tuple[str, str, str]]:
    lines = (folder / LOG_NAME).read_text().splitlines()
    return [(said["instance"], said["level"], said["event"]) for said in map(json.loads, lines)]


def test_a_line_goes_to_both_and_one_that_the_terminal_gets_otherwise_to_the_file(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.log.keep_in(tmp_path)
    terminal.log.write("decode-0", b"hello", "warning")
    terminal.log.keep("penstock", b"why it ended", "error")
    terminal.log.leave_terminal()
    terminal.log.write("decode-0", b"later")
    terminal.log.close_file()
    assert terminal.lines == ["decode-0 | hello"]
    assert kept(tmp_path) == [
        ("decode-0", "warning", "hello"),
        ("penstock", "error", "why it ended"),
        ("decode-0", "info", "later"),
    ]


def test_lines_from_before_there_is_a_file_are_in_it_the_last_of_too_many(
    terminal: Terminal, tmp_path: Path
) -> None:
    for number in range(MAX_EARLY_LINES + 1):
        terminal.log.write("penstock", b"%d" % number)
    terminal.log.keep_in(tmp_path)
    terminal.log.write("penstock", b"then")
    terminal.log.close_file()
    events = [event for _, _, event in kept(tmp_path)]
    assert events == [*(str(number) for number in range(1, MAX_EARLY_LINES + 1)), "then"]


async def test_a_log_that_cannot_be_written_is_told_once_on_the_terminal_and_its_gap_in_the_log(
    terminal: Terminal, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    terminal.log.keep_in(folder)  # nobody has made it
    for _ in range(3):
        terminal.log.write("decode-0", b"lost")
    assert terminal.log._kept is not None
    await until(lambda: terminal.log._kept is not None and terminal.log._kept._unwritten == 3)
    folder.mkdir()
    terminal.log.write("decode-0", b"there")
    terminal.log.close_file()
    terminal.log.leave_terminal()
    told = f"penstock | the log {folder / LOG_NAME} cannot be written (No such file or directory): lines are"
    assert [line.startswith(told) for line in terminal.lines if "cannot" in line] == [True]
    assert kept(folder) == [
        ("penstock", "warning", "3 log lines could not be written"),
        ("decode-0", "info", "there"),
    ]
