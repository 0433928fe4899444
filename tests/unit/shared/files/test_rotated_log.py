"""The log of a stack: written within its limits, read across them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.files.log_reader import LogReader
from shared.files.rotated_log import EARLIER_LOG_NAME, LOG_NAME, RotatedLog

LIMIT_BYTES = 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RotatedLog]:
    log = RotatedLog(tmp_path, LIMIT_BYTES)
    yield log
    log.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def disk_of(size_bytes: int) -> Iterator[None]:
    """No file of ours grows longer: the kernel takes what fits and then says so, as for a disk."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_a_file_may_be_full_and_the_next_byte_begins_another(log: RotatedLog, tmp_path: Path) -> None:
    full = b"1" * 9 + b"\n" + b"2" * 9 + b"\n"
    log.write(full[:10])
    log.write(full[10:])
    assert files(tmp_path) == {LOG_NAME: full}
    log.write(b"\n")
    assert files(tmp_path) == {LOG_NAME: b"\n", EARLIER_LOG_NAME: full}


def test_two_files_are_all_there_is(log: RotatedLog, tmp_path: Path) -> None:
    for number in range(9):
        log.write(b"%d" % number * 15 + b"\n")
    assert files(tmp_path) == {LOG_NAME: b"8" * 15 + b"\n", EARLIER_LOG_NAME: b"7" * 15 + b"\n"}


def test_a_stack_that_is_started_again_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    (tmp_path / LOG_NAME).write_bytes(b"before\n")
    log = RotatedLog(tmp_path, LIMIT_BYTES)
    log.write(b"after\n")
    assert files(tmp_path) == {LOG_NAME: b"before\nafter\n"}
    log.write(b"x" * LIMIT_BYTES)
    log.close()
    assert files(tmp_path)[EARLIER_LOG_NAME] == b"before\nafter\n"


def test_nobody_else_reads_it_also_where_somebody_has_let_them(log: RotatedLog, tmp_path: Path) -> None:
    (tmp_path / LOG_NAME).touch(0o644)
    for _ in range(2):
        log.write(b"x" * LIMIT_BYTES)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_link_in_its_place_is_not_followed(log: RotatedLog, tmp_path: Path) -> None:
    (tmp_path / LOG_NAME).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        log.write(b"line\n")
    assert not (tmp_path / "other").exists()


def test_a_log_that_somebody_has_removed_is_there_again(log: RotatedLog, tmp_path: Path) -> None:
    log.write(b"1\n")
    (tmp_path / LOG_NAME).unlink()
    log.write(b"2\n")
    assert files(tmp_path) == {LOG_NAME: b"2\n"}


def test_a_full_disk_takes_no_part_of_a_line(log: RotatedLog, tmp_path: Path) -> None:
    log.write(b"whole\n")
    with disk_of(8), pytest.raises(OSError, match="File too large"):
        log.write(b"does not fit\n")
    assert files(tmp_path) == {LOG_NAME: b"whole\n"}
    log.write(b"fits\n")
    assert files(tmp_path) == {LOG_NAME: b"whole\nfits\n"}


def test_a_file_that_could_not_be_opened_is_when_it_can(
    log: RotatedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError("too many open files")

    log.write(b"1" * LIMIT_BYTES)
    monkeypatch.setattr(os, "open", refused)
    for _ in range(2):
        with pytest.raises(OSError, match="too many"):
            log.write(b"2\n")
    monkeypatch.undo()
    log.write(b"3\n")
    assert files(tmp_path) == {LOG_NAME: b"3\n", EARLIER_LOG_NAME: b"1" * LIMIT_BYTES}


# ---- read -------------------------------------------------------------------------------------------


def test_without_a_log_nothing_is_read(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert not reader.is_there
    assert list(reader.lines()) == []


def test_both_files_are_read_and_what_comes(log: RotatedLog, tmp_path: Path) -> None:
    for line in (b"1" * 15, b"2" * 15, b"3"):
        log.write(line + b"\n")
    reader = LogReader(tmp_path)
    assert list(reader.lines()) == [b"1" * 15, b"2" * 15, b"3"]
    assert list(reader.lines()) == []
    log.write(b"4\n")
    assert list(reader.lines()) == [b"4"]
    reader.close()


def test_each_line_is_read_once_across_the_change_of_files(log: RotatedLog, tmp_path: Path) -> None:
    log.write(b"0\n")
    reader = LogReader(tmp_path)
    read: list[bytes] = []
    for number in range(1, 60):
        log.write(b"%d\n" % number)
        if number % 5 == 0:  # less than a file is written between two looks
            read += reader.lines()
    read += reader.lines()
    reader.close()
    assert read == [b"%d" % number for number in range(60)]
    assert not reader.has_missed


def test_a_reader_that_was_left_behind_says_so(log: RotatedLog, tmp_path: Path) -> None:
    log.write(b"first\n")
    reader = LogReader(tmp_path)
    assert list(reader.lines()) == [b"first"]
    for number in range(9):
        log.write(b"%d" % number * 15 + b"\n")
    assert list(reader.lines()) == [b"7" * 15, b"8" * 15]
    assert reader.has_missed
    reader.close()


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    with (tmp_path / LOG_NAME).open("wb", buffering=0) as file:
        file.write(b"one\ntw")
        reader = LogReader(tmp_path)
        assert list(reader.lines()) == [b"one"]
        file.write(b"o\n")
        assert list(reader.lines()) == [b"two"]
        reader.close()
