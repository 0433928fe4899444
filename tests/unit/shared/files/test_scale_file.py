"""The file by which a stack is scaled: what is written is read, and nothing else is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.files.scale_file import MAX_ABSENT, MAX_INSTANCES, SCALE_NAME, StackScale, read_scale, write_scale

SCALE = StackScale(7, {"decode": MAX_INSTANCES, "prefill": 1}, 180.0, ("prefill-1",))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_scale(tmp_path) is None
    write_scale(tmp_path, SCALE)
    assert read_scale(tmp_path) == SCALE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 10_000,
        '{"number": 1, "counts": [], "patience_s": 1}',
        '{"number": 1, "counts": {"decode": 0}, "patience_s": 1}',
        f'{{"number": 1, "counts": {{"decode": {MAX_INSTANCES + 1}}}, "patience_s": 1}}',
        '{"number": 1, "patience_s": 1}',
        '{"number": 1, "counts": {}, "patience_s": 1, "absent": 1}',
        f'{{"number": 1, "counts": {{}}, "patience_s": 1, "absent": {[0] * (MAX_ABSENT + 1)}}}',
    ],
)
def test_what_is_no_such_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / SCALE_NAME).write_text(text)
    with pytest.raises(InvalidRequest, match="remove it, and scale again"):
        read_scale(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"scale\.json cannot be written"):
        write_scale(tmp_path / "none", SCALE)
