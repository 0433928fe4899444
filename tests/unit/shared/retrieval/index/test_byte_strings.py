from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.errors import ChecksumMismatch
from shared.retrieval.index.byte_strings import ByteStrings, file_names_of

STRINGS = [b"one", b"", b"\xed\xa0\x80", b"four", b""]


@pytest.mark.parametrize("strings", [STRINGS, [], [b""]])
def test_they_are_read_as_they_were_written(tmp_path: Path, strings: list[bytes]) -> None:
    ByteStrings.of(strings).save(tmp_path, "name")
    loaded = ByteStrings.load(tmp_path, "name")
    assert [loaded[number] for number in range(len(loaded))] == strings
    assert {path.name for path in tmp_path.iterdir()} == set(file_names_of("name"))


def test_parts_are_joined_to_what_their_strings_are() -> None:
    strings = ByteStrings.of(STRINGS)
    joined = ByteStrings.joined(
        [strings.part(range(3, 5)), strings.part(range(1, 1)), strings.part(range(3))]
    )
    assert [joined[number] for number in range(len(joined))] == [*STRINGS[3:], *STRINGS[:3]]
    assert len(ByteStrings.joined([])) == 0


@pytest.mark.parametrize(
    "ends", [[3, 3, 6], [3, 3, 6, 10, 11], [3, 2, 6, 10, 10], [-1, 3, 6, 10, 10], [3.0, 3, 6, 10, 10], []]
)
def test_ends_that_are_not_those_of_the_strings_are_refused(tmp_path: Path, ends: list[float]) -> None:
    ByteStrings.of(STRINGS).save(tmp_path, "name")
    np.save(tmp_path / "name.npy", np.array(ends))
    with pytest.raises(ChecksumMismatch, match="files of name"):
        ByteStrings.load(tmp_path, "name")
