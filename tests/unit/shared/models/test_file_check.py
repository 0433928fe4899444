"""Files are what they are said to be, or they go."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from shared.errors import ChecksumMismatch, InvalidRequest
from shared.models.file_check import CHUNK_BYTES, check_digest, copy_file, digest_file

CONTENT = b"x" * (CHUNK_BYTES + 1)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIT_SHA1 = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    path.write_bytes(CONTENT)
    return path


def test_a_file_is_digested_and_copied_in_parts_that_are_told(file: Path, tmp_path: Path) -> None:
    noted: list[int] = []
    found = digest_file(file, noted.append)
    assert (found.name, found.size_bytes, found.sha256) == ("m.json", len(CONTENT), SHA256)
    copied = copy_file(file, tmp_path / "copy.json", noted.append)
    assert (copied.name, copied.sha256, (tmp_path / "copy.json").read_bytes()) == (
        "copy.json",
        SHA256,
        CONTENT,
    )
    assert noted == [CHUNK_BYTES, 1] * 2


@pytest.mark.parametrize(("sha256", "git_sha1"), [(SHA256, ""), (SHA256, "0" * 40), ("", GIT_SHA1)])
def test_a_file_that_is_what_the_hub_says_stays(file: Path, sha256: str, git_sha1: str) -> None:
    check_digest(file, digest_file(file, lambda _: None), sha256, git_sha1)
    assert file.exists()


@pytest.mark.parametrize(("sha256", "git_sha1"), [("0" * 64, GIT_SHA1), ("", "0" * 40), ("", "")])
def test_one_that_is_not_goes(file: Path, sha256: str, git_sha1: str) -> None:
    with pytest.raises(ChecksumMismatch, match=r"m\.json is not what the hub says that it is"):
        check_digest(file, digest_file(file, lambda _: None), sha256, git_sha1)
    assert not file.exists()


def test_a_file_that_is_written_to_while_it_is_copied_is_refused(file: Path, tmp_path: Path) -> None:
    def write(_: int) -> None:
        os.utime(file, ns=(0, 7))

    with pytest.raises(InvalidRequest, match="was written to while it was copied"):
        copy_file(file, tmp_path / "copy.json", write)
