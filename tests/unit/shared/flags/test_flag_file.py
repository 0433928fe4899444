"""The file of changes: who writes it adds to it, and what is damaged in it is left out and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.flags import flag_file
from shared.flags.flag_file import read_flag_file, unite_flag_file
from shared.flags.flag_history import FlagHistory
from tests.support.flag_changes import flag_change


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "flags.jsonl"
    assert read_flag_file(path).history == FlagHistory()
    known = FlagHistory().united(
        [flag_change(8, share=0.05, guard="errors<1%"), flag_change(9, rolls_back="8@x")], 7
    )
    assert unite_flag_file(path, known) == known
    assert read_flag_file(path).history == known
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_writes_adds_what_others_have_written(tmp_path: Path) -> None:
    path = tmp_path / "flags.jsonl"
    unite_flag_file(path, FlagHistory().united([flag_change(1, "a")]))
    united = unite_flag_file(path, FlagHistory().united([flag_change(1, "b")]))
    assert [change.version for change in united.changes] == ["1@a", "1@b"]
    assert read_flag_file(path).history == united


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        '{"number": true}',
        '{"forgotten": "x"}',
        json.dumps({"number": 1, "origin": "a", "made_unix_us": 1, "author": "a", "reason": "b"}),
        "[" * 100_000,
    ],
)
def test_a_damaged_line_is_told_and_the_others_count(tmp_path: Path, line: str) -> None:
    path = tmp_path / "flags.jsonl"
    known = unite_flag_file(path, FlagHistory().united([flag_change(1)]))
    path.write_text(f"{line}\n{path.read_text()}")
    read = read_flag_file(path)
    assert read.history == known
    assert "line 1 of" in read.trouble
    unite_flag_file(path, known)
    assert read_flag_file(path).trouble == ""


def test_fields_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "flags.jsonl"
    known = unite_flag_file(path, FlagHistory().united([flag_change(1)]))
    path.write_text(path.read_text().replace("{", '{"region": "eu", ', 1))
    assert read_flag_file(path).history == known


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flags.jsonl"
    unite_flag_file(path, FlagHistory().united([flag_change(1)]))
    monkeypatch.setattr(flag_file, "MAX_FLAG_FILE_BYTES", path.stat().st_size)
    assert read_flag_file(path).history.changes
    monkeypatch.setattr(flag_file, "MAX_FLAG_FILE_BYTES", path.stat().st_size - 1)
    with pytest.raises(InvalidRequest, match="move it away"):
        read_flag_file(path)
