"""Numbers in brackets as citations: which ones are, where they stand, however the text comes in parts."""

from __future__ import annotations

import pytest

from services.gateway.http.responses.citations import Citations
from shared.text.passage_source import document_of, passage_source

DOCUMENTS = {1: "rivers.md", 2: "lakes.md", 16: "seas.md"}
TEXT = "Ä river [1] flows [2][1] on [3], a[0] [16] [1"


def cited(*parts: str) -> list[tuple[int, str]]:
    citations = Citations(DOCUMENTS)
    told = [citation for part in parts for citation in citations.read(part)]
    assert told == citations.found
    assert {citation["type"] for citation in told} == {"file_citation"}
    assert all(citation["file_id"] == citation["filename"] for citation in told)
    return [(citation["index"], citation["filename"]) for citation in told]


WHERE = [
    (TEXT.index("[1]"), "rivers.md"),
    (TEXT.index("[2]"), "lakes.md"),
    (TEXT.index("[2]") + 3, "rivers.md"),
    (TEXT.index("[16]"), "seas.md"),
]


def test_each_number_of_a_passage_in_the_prompt_is_a_citation_where_it_begins() -> None:
    assert cited(TEXT) == WHERE


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_number_in_parts_is_the_same_citation(size: int) -> None:
    assert cited(*(TEXT[at : at + size] for at in range(0, len(TEXT), size))) == WHERE


def test_a_citation_is_told_with_the_part_that_completes_it() -> None:
    citations = Citations(DOCUMENTS)
    assert [len(citations.read(part)) for part in ("so [", "1", "6", "]", "]")] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("text", ["[[1", "[1 ]", "[01]", "[160]", "[-1]", "[one]", "1]"])
def test_what_is_no_number_of_a_passage_cites_nothing(text: str) -> None:
    citations = Citations(DOCUMENTS)
    assert citations.read(text) == citations.read(" ") == []


def test_a_source_names_its_document() -> None:
    assert document_of(passage_source("a/b.md", "Head > Under")) == "a/b.md"
    assert document_of(passage_source("a.txt", "")) == "a.txt"
