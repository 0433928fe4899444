"""The file that says how a stack is rolled."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.files.roll_file import ROLL_NAME, StackRoll, read_roll, stand_in_name, write_roll

ROLL = StackRoll(
    7, "/bin/python", "/code", "abc", ("decode", "gateway"), {"decode-0": 12}, "decode-2", "decode-0", False
)


def test_what_is_written_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    assert read_roll(tmp_path) is None
    write_roll(tmp_path, ROLL)
    assert read_roll(tmp_path) == ROLL
    assert stat.S_IMODE((tmp_path / ROLL_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", '{"number": "x"}', "[" * 100_000])
def test_what_is_no_such_file_is_told_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / ROLL_NAME).write_text(text)
    with pytest.raises(InvalidRequest, match=f"{ROLL_NAME} cannot be read .* remove it"):
        read_roll(tmp_path)


def test_lives_that_are_a_list_are_told(tmp_path: Path) -> None:
    write_roll(tmp_path, ROLL)
    file = tmp_path / ROLL_NAME
    file.write_text(json.dumps({**json.loads(file.read_text()), "lives": ["decode-0"]}))
    with pytest.raises(InvalidRequest, match=f"{ROLL_NAME} cannot be read .* remove it"):
        read_roll(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write_roll(tmp_path / "missing", ROLL)


def test_what_stands_in_has_the_next_name_of_its_role() -> None:
    assert stand_in_name("decode", 2) == "decode-2"
