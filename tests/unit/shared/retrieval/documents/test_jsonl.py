"""Lines of JSONL are documents; a bad one is skipped with its reason, and the next one counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.retrieval.documents import jsonl, text_files
from shared.retrieval.documents.document import START, Document, FilePlace, Unreadable
from shared.retrieval.documents.jsonl import read_lines


def read_all(path: Path) -> tuple[list[Document], list[tuple[int, str]]]:
    documents: list[Document] = []
    skipped: list[tuple[int, str]] = []
    place: FilePlace | None = START
    while place is not None:
        part = read_lines(path, path.name, place)
        documents += part.documents
        skipped += part.skipped
        place = part.rest
    return documents, skipped


def lines_of(path: Path, *lines: object) -> tuple[list[Document], list[tuple[int, str]]]:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_all(path)


def test_a_line_of_json_is_a_document_with_title_and_metadata(tmp_path: Path) -> None:
    documents, skipped = lines_of(
        tmp_path / "a.jsonl",
        {
            "id": "g1",
            "title": "The\ngate",
            "text": "It opens.",
            "metadata": {"year": 2024, "tag": ["b", "a"]},
        },
        "",
        {"_id": 7, "text": "More."},
        {"text": "Last."},
    )
    assert skipped == []
    assert documents == [
        Document(
            "a.jsonl#g1",
            "It opens.",
            False,
            "The gate",
            metadata=(("tag", "a"), ("tag", "b"), ("year", "2024")),
        ),
        Document("a.jsonl#7", "More.", False),
        Document("a.jsonl#4", "Last.", False),
    ]


OTHER_METADATA = (
    "its `metadata` has other values than texts, numbers, truth values and lists of them, of 256 characters"
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is no JSON in UTF-8"),
        ("[" * 100_000, "it is no JSON in UTF-8"),
        ([], "it is no object with a `text`"),
        ({"text": 1}, "it is no object with a `text`"),
        ({"text": "a", "title": 1}, "its `title` is no text of at most 512 characters"),
        ({"text": "a", "id": []}, "its `id` is no text or number of at most 256 characters"),
        ({"text": "a", "metadata": []}, "its `metadata` is no object"),
        ({"text": "a", "metadata": {"b": ["c"] * 33}}, "its `metadata` has 33 values, more than 32"),
        (
            {"text": "a", "metadata": {"": "c"}},
            OTHER_METADATA,
        ),
        (
            {"text": "a", "metadata": {"b": ["c" * 257]}},
            OTHER_METADATA,
        ),
        (
            {"text": "a", "metadata": {"b": None}},
            OTHER_METADATA,
        ),
        ({"text": "a\0"}, "it is binary: it has NUL characters"),
        ({"text": "\ud800"}, "it has half of a character (a lone surrogate)"),
        ({"text": "x" * 300}, "it is over the limit of 300 bytes"),
    ],
)
def test_a_bad_line_is_skipped_with_its_reason_and_the_next_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: object, reason: str
) -> None:
    if "300" in reason:
        monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 300)
    documents, skipped = lines_of(tmp_path / "a.jsonl", line, {"text": "good 🙂"})
    assert skipped == [(1, reason)]
    assert [(each.name, each.text) for each in documents] == [("a.jsonl#2", "good 🙂")]


def test_a_file_of_lines_may_be_longer_than_others_up_to_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "MAX_FILE_BYTES", 10)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 3)
    documents, skipped = read_all(path)
    assert (len(documents), skipped) == (3, [])
    monkeypatch.setattr(jsonl, "MAX_JSONL_BYTES", 41)
    with pytest.raises(Unreadable, match="42 bytes are over the limit of 41"):
        read_all(path)


@pytest.mark.parametrize("part_bytes", [1, 20, 40, 1000])
def test_a_file_is_the_same_in_parts_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    lines = [{"text": "one"}, "", "{", {"text": "x" * 300}, {"text": "two"}]
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 100)
    whole = lines_of(tmp_path / "a.jsonl", *lines)
    monkeypatch.setattr(jsonl, "PART_BYTES", part_bytes)
    assert lines_of(tmp_path / "a.jsonl", *lines) == whole
    assert [each.name for each in whole[0]] == ["a.jsonl#1", "a.jsonl#5"]
    assert [number for number, _ in whole[1]] == [3, 4]
