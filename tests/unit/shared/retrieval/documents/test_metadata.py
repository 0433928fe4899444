"""What filters are compared with, what clients are told, and the masks that filters make."""

from __future__ import annotations

import numpy as np
import pytest

from shared.messages import Filters
from shared.retrieval.documents.metadata import MAX_TOLD_BYTES, Pairs, all_values, told_metadata
from shared.retrieval.documents.passages import Passage
from shared.retrieval.index import metadata_masks
from shared.retrieval.index.metadata_masks import MAX_KEPT_FIELDS, MetadataMasks
from shared.retrieval.index.passage_table import IndexedFile, PassageTable


def test_a_document_is_known_by_its_place_too() -> None:
    assert set(all_values("hr/rules/Leave.MD", (("lang", "en"),))) == {
        ("lang", "en"),
        ("source", "hr/rules/Leave.MD"),
        ("folder", "hr/rules"),
        ("folder", "hr"),
        ("suffix", "md"),
    }


def test_a_line_of_a_jsonl_file_is_known_by_the_file_too() -> None:
    assert set(all_values("faq/all.jsonl#7/8.md", ())) == {
        ("source", "faq/all.jsonl#7/8.md"),
        ("source", "faq/all.jsonl"),
        ("folder", "faq"),
        ("suffix", "jsonl"),
    }


def test_a_client_is_told_each_field_once_and_the_document_s_own_word_wins() -> None:
    metadata = (("source", "https://a"), ("tags", "a"), ("tags", "b"))
    assert told_metadata("x/y/z.md", metadata) == (
        ("source", "https://a"),
        ("tags", "a, b"),
        ("folder", "x/y"),
        ("suffix", "md"),
    )


@pytest.mark.parametrize(
    ("size", "told"), [(MAX_TOLD_BYTES, ["field"]), (MAX_TOLD_BYTES + 1, ["source", "suffix"])]
)
def test_what_does_not_fit_is_not_told_and_what_follows_it_is_where_it_does(
    size: int, told: list[str]
) -> None:
    text_bytes = size - len("field")
    value = "é" * (text_bytes // 2) + "x" * (text_bytes % 2)
    assert [field for field, _ in told_metadata("a.md", (("field", value),))] == told


def masks(*files: tuple[str, int, Pairs]) -> MetadataMasks:
    """Of documents with a name, so many passages, and metadata."""
    return MetadataMasks(
        PassageTable.of_files(
            [
                IndexedFile(name, name, tuple(Passage("", f"{name} {n}") for n in range(count)), (), metadata)
                for name, count, metadata in files
            ]
        )
    )


DOCUMENTS: tuple[tuple[str, int, Pairs], ...] = (
    ("en/a.md", 2, (("lang", "en"), ("tags", "red"), ("tags", "blue"))),
    ("en/none.md", 0, (("lang", "en"),)),
    ("de/b.txt", 1, (("lang", "de"), ("tags", "red"))),
    ("c.md", 1, ()),
)


@pytest.mark.parametrize(
    ("filters", "allowed"),
    [
        ((("lang", ("en",)),), [1, 1, 0, 0]),
        ((("lang", ("de", "en")),), [1, 1, 1, 0]),
        ((("tags", ("red",)),), [1, 1, 1, 0]),
        ((("tags", ("blue",)),), [1, 1, 0, 0]),
        ((("lang", ("de",)), ("tags", ("red",))), [0, 0, 1, 0]),
        ((("lang", ("de",)), ("tags", ("blue",))), [0, 0, 0, 0]),
        ((("folder", ("en",)),), [1, 1, 0, 0]),
        ((("suffix", ("md",)),), [1, 1, 0, 1]),
        ((("source", ("c.md",)),), [0, 0, 0, 1]),
        ((("lang", ("fr",)),), [0, 0, 0, 0]),
        ((("colour", ("red",)),), [0, 0, 0, 0]),
    ],
)
def test_a_passage_passes_where_every_field_has_one_of_the_values(
    filters: Filters, allowed: list[int]
) -> None:
    mask = masks(*DOCUMENTS).allowed(filters)
    assert mask is not None
    assert mask.astype(int).tolist() == allowed


def test_without_filters_all_passages_pass() -> None:
    assert masks(*DOCUMENTS).allowed(()) is None
    assert masks(*DOCUMENTS).unknown_fields(()) == []


def test_a_field_that_no_document_has_is_named() -> None:
    filters = (("colour", ("red",)), ("lang", ("fr",)), ("suffix", ("md",)))
    assert masks(*DOCUMENTS).unknown_fields(filters) == ["colour"]


def test_a_mask_is_made_once() -> None:
    of = masks(*DOCUMENTS)
    filters = (("lang", ("en",)),)
    assert of.allowed(filters) is of.allowed(filters)


def test_masks_that_are_kept_are_bounded_and_the_last_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_masks, "MAX_MASK_BYTES", 8)  # of four passages: two masks
    of = masks(*DOCUMENTS)
    english, german, other = ((("lang", (value,)),) for value in ("en", "de", "fr"))
    first, second = of.allowed(english), of.allowed(german)
    assert of.allowed(english) is first
    of.allowed(other)
    assert of.allowed(english) is first
    assert of.allowed(german) is not second


def test_fields_that_are_kept_are_bounded_and_found_again() -> None:
    names = [f"field {number}" for number in range(MAX_KEPT_FIELDS + 1)]
    of = masks(("a.md", 1, tuple((name, "x") for name in names)), ("b.md", 1, ()))
    for _ in range(2):
        found = [of.allowed(((name, ("x",)),)) for name in names]
        assert all(mask is not None and np.array_equal(mask, [True, False]) for mask in found)
