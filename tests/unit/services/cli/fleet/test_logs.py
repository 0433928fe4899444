"""What `penstock logs` shows, of logs as the launcher writes them."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.cli.fleet import logs
from shared.files.rotated_log import LOG_NAME, RotatedLog
from tests.support.launcher_lock import held_lock


def line_of(instance: str, event: str, level: str = "info", **fields: str) -> bytes:
    said = {
        "event": event,
        "role": instance.partition("-")[0],
        "instance": instance,
        "level": level,
        "ts": "2026-01-01T12:30:01.123456Z",
        **fields,
    }
    return json.dumps(said).encode() + b"\n"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    log = RotatedLog(tmp_path)
    log.write(line_of("decode-0", "one", "debug"))
    log.write(line_of("gateway-0", "two"))
    log.write(line_of("decode-1", "three", "warning"))
    log.write(line_of("penstock", "four", "critical"))
    log.close()
    return tmp_path


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def run(state_dir: Path, *argv: str) -> int:
    return logs.main([*argv, "--state-dir", str(state_dir)])


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ([], ["one", "two", "three", "four"]),
        (["decode-1"], ["three"]),
        (["decode"], ["one", "three"]),
        (["gateway-0", "penstock"], ["two", "four"]),
        (["--level", "info"], ["two", "three", "four"]),
        (["--level", "error"], ["four"]),
        (["--lines", "2"], ["three", "four"]),
        (["--lines", "0"], []),
        (["--lines", "9"], ["one", "two", "three", "four"]),
        (["decode", "--lines", "1", "--level", "debug"], ["three"]),
        (["-f", "--lines", "1"], ["four"]),  # it ends with the stack, which has ended
    ],
)
def test_lines_are_chosen_by_name_level_and_number(
    state_dir: Path, capfd: pytest.CaptureFixture[str], argv: list[str], shown: list[str]
) -> None:
    assert run(state_dir, *argv) == 0
    assert events(capfd.readouterr().out) == shown


def test_a_name_that_nobody_has_is_answered_with_those_there_are(
    state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(state_dir, "decode-1", "decoder") == 1
    said = capfd.readouterr()
    assert said.err == (
        f"penstock logs: the log of {state_dir} has nothing of 'decoder'; there is decode-0, decode-1, "
        "gateway-0, penstock\n"
    )
    assert said.out == ""


def test_an_instance_that_has_said_nothing_yet_is_known(
    state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (state_dir / "stack.json").write_text('{"instances": [{"id": "prefill-0"}]}')
    assert run(state_dir, "prefill-0") == 0
    assert capfd.readouterr().out == ""


def test_where_no_stack_has_run_there_is_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert f"there is no log in {tmp_path}: no stack has run from there" in capfd.readouterr().err


def test_a_line_that_a_killed_launcher_has_left_is_counted(
    state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (state_dir / LOG_NAME).open("ab") as file:
        file.write(b'{"event": "tor' + line_of("decode-0", "five"))
    assert run(state_dir, "decode-0") == 0
    said = capfd.readouterr()
    assert events(said.out) == ["one"]
    assert said.err == "penstock logs: 1 lines of the log are damaged and left out\n"


def test_a_terminal_is_shown_text_that_it_does_not_obey(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RotatedLog(tmp_path)
    log.write(line_of("decode-0", "\x1b[2J", why="two words", exception="first\nsecond"))
    log.close()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    run(tmp_path)
    coloured = capfd.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    run(tmp_path)
    assert capfd.readouterr().out == (
        '2026-01-01\ndecode-0 | 12:30:01.123 info    \\x1b[2J why="two words"\n'
        "decode-0 | first\ndecode-0 | second\n"
    )
    assert coloured.count("\x1b[36mdecode-0 |\x1b[0m ") == 3


def test_on_a_terminal_a_day_stands_before_its_lines_unless_it_is_today(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, today = RotatedLog(tmp_path), datetime.now(UTC).date().isoformat()
    for day in ("2026-01-01", "2026-01-01", "2026-01-02"):
        log.write(line_of("a", "x", ts=f"{day}T12:30:01.123456Z"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    run(tmp_path)
    line = "a | 12:30:01.123 info    x\n"
    assert capfd.readouterr().out == f"2026-01-01\n{line}{line}2026-01-02\n{line}"
    log.write(line_of("a", "x", ts=f"{today}T12:30:01.123456Z"))
    run(tmp_path, "--lines", "1")
    assert capfd.readouterr().out == line
    log.close()


def test_following_goes_on_across_files_until_the_stack_has_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, number = RotatedLog(tmp_path, limit_bytes=4 * len(line_of("decode-0", "000"))), 0
    launcher = ExitStack()
    launcher.enter_context(held_lock(tmp_path))
    log.write(line_of("decode-0", "000"))

    def write_more(_seconds: float) -> None:
        """The stack goes on while the command pauses, and its last words come with its end."""
        nonlocal number
        for _ in range(3):
            number += 1
            log.write(line_of("decode-0", f"{number:03}"))
        if number == 30:
            launcher.close()

    monkeypatch.setattr(time, "sleep", write_more)
    assert run(tmp_path, "-f") == 0
    log.close()
    said = capfd.readouterr()
    assert events(said.out) == [f"{each:03}" for each in range(31)]
    assert said.err == ""


def test_who_followed_too_slowly_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, pauses = RotatedLog(tmp_path, limit_bytes=300), 0
    launcher = ExitStack()
    launcher.enter_context(held_lock(tmp_path))
    log.write(line_of("decode-0", "first"))

    def write_much(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        for _ in range(20):
            log.write(line_of("decode-0", "much"))
        if pauses == 3:
            launcher.close()

    monkeypatch.setattr(time, "sleep", write_much)
    assert run(tmp_path, "-f") == 0
    log.close()
    assert capfd.readouterr().err == (
        "penstock logs: stack.log was full more than once meanwhile: lines may be missing here\n"
    )
