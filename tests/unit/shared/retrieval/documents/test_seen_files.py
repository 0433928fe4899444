from __future__ import annotations

from pathlib import Path

import pytest

from shared.files.file_signature import file_signature
from shared.retrieval.documents.corpus import FileSummary
from shared.retrieval.documents.seen_files import (
    SEEN_NAME,
    SETTLED_NS,
    SeenFile,
    read_seen,
    save_seen,
    settled,
)

FILES = [
    SeenFile("a.md", (1, 2, 3, 4), FileSummary(1, 20)),
    SeenFile(
        "b \udce4.jsonl", (1 << 62, 2, 1 << 60, 4), FileSummary(2, 9, (("b, line 3", "it is no JSON"),))
    ),
    SeenFile("c.md", None, FileSummary(0, 0, (("c.md", "Permission denied"),), is_whole=False)),
]


def test_what_was_seen_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_seen(tmp_path, "rules", "content") == []
    save_seen(tmp_path, "rules", "content", FILES)
    assert read_seen(tmp_path, "rules", "content") == FILES


@pytest.mark.parametrize(("rules", "content"), [("others", "content"), ("rules", "another")])
def test_it_says_nothing_of_other_rules_or_another_generation(
    tmp_path: Path, rules: str, content: str
) -> None:
    save_seen(tmp_path, "rules", "content", FILES)
    assert read_seen(tmp_path, rules, content) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty"])
def test_a_damaged_one_says_nothing(tmp_path: Path, damage: str) -> None:
    save_seen(tmp_path, "rules", "content", FILES)
    data = (tmp_path / SEEN_NAME).read_bytes()
    flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    (tmp_path / SEEN_NAME).write_bytes(
        {"flip": flipped, "cut": data[:-1], "longer": data + b" ", "empty": b""}[damage]
    )
    assert read_seen(tmp_path, "rules", "content") == []


@pytest.mark.parametrize("place", [0, 1], ids=["modified", "changed"])
@pytest.mark.parametrize("short_ns", [0, 1])
def test_a_file_written_just_before_it_was_read_is_not_settled(place: int, short_ns: int) -> None:
    read_ns = 10 * SETTLED_NS
    times = [0, 0]
    times[place] = read_ns - SETTLED_NS + short_ns
    signature = (times[0], times[1], 3, 4)
    assert settled(signature, read_ns) == (None if short_ns else signature)


def test_no_file_is_settled(tmp_path: Path) -> None:
    assert settled(file_signature(tmp_path / "none"), 0) is None
