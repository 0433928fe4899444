"""A file that a user names is read as far as it may be large, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.files.bounded_file import read_bounded, read_bounded_text


def test_a_file_of_as_many_bytes_as_may_be_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_bounded(tmp_path / "file", 4, "the file") == b"1234"


def test_one_byte_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(InvalidRequest, match=r"^the file is larger than 4 bytes; name another$"):
        read_bounded(tmp_path / "file", 4, "the file", "; name another")


def test_what_cannot_be_read_is_said_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^the file cannot be read \(No such file or directory\)$"):
        read_bounded(tmp_path / "none", 4, "the file")


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"^the file is not UTF-8 text; name another$"):
        read_bounded_text(tmp_path / "file", 4, "the file", "; name another")
