"""Whatever a document makes of its reader, it is that document's: it ends in bounded time, with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.retrieval.documents import document
from shared.retrieval.documents.document import Document, Unreadable
from shared.retrieval.documents.document_jobs import packed_job, read_file_part, unpacked_part
from shared.retrieval.documents.document_reader import DocumentReader
from shared.retrieval.documents.jsonl import PART_BYTES
from shared.retrieval.documents.passages import split_passages
from tests.support.data import REPOSITORY

HOSTILE = "tests.support.hostile_documents"


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        reader = DocumentReader()
        yield reader
        reader.close()


def read(reader: DocumentReader, path: Path, data: bytes) -> Document:
    path.write_bytes(data)
    (document,) = reader.read(path, path.name, lambda: None).documents
    return document


def test_a_document_comes_with_its_passages(reader: DocumentReader, tmp_path: Path) -> None:
    text = "---\nlang: en\n---\n# Gäte\nIt opens.\n## Port\n" + "A ship comes in. " * 50
    document = read(reader, tmp_path / "a.md", text.encode())
    assert document.metadata == (("lang", "en"),)
    assert document.cut() == tuple(split_passages(document.text, markdown=True))
    assert [passage.heading for passage in document.cut()][:2] == ["Gäte", "Gäte > Port"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b'<meta charset="undefined"><p>x', "it says to be written in undefined, which nobody knows"),
        (b'<meta charset="punycode"><p>x', "it says to be written in punycode, which nobody knows"),
        (b'<meta charset="idna"><p>x', "it says to be written in idna, which nobody knows"),
        (b'<meta charset="unicode_escape">\\ud800', "in unicode_escape, which nobody knows"),
        (b'<meta charset="raw_unicode_escape">\\ud800', "in raw_unicode_escape, which nobody knows"),
        (b'<meta charset="base64"><p>x', "it says to be written in base64, which nobody knows"),
        (b"<p>\xff", "it is not UTF-8 text"),
        (b"<![foo[", "it is damaged"),
    ],
)
def test_a_hostile_page_is_left_out_with_its_reason(
    reader: DocumentReader, tmp_path: Path, page: bytes, reason: str
) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(reader, tmp_path / "a.html", page)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("spin", "it takes longer than 30 s to read"),
        ("allocate", "it takes more than 2048 MiB to read"),
        ("abort", "it takes more than 2048 MiB to read"),
        ("raise", "it is damaged \\(ArithmeticError\\)"),
        ("system exit", "it was not read: 7"),
    ],
)
def test_whatever_a_reader_does_ends_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    reader = DocumentReader(HOSTILE)
    try:
        with pytest.raises(Unreadable, match=reason) as left_out:
            read(reader, tmp_path / "a.txt", content.encode())
        assert left_out.value.is_lasting == ("takes" in reason)
        assert read(reader, tmp_path / "b.txt", b"fine").text == "fine"
    finally:
        reader.close()


class Ended(Exception):
    pass


def test_who_waits_for_a_document_may_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    reader = DocumentReader(HOSTILE)

    def end() -> None:
        raise Ended

    (tmp_path / "a.txt").write_text("wait")
    with pytest.raises(Ended):
        reader.read(tmp_path / "a.txt", "a.txt", end)
    assert read(reader, tmp_path / "b.txt", b"fine").text == "fine"
    reader.close()


def test_a_document_of_too_many_passages_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_DOCUMENT_PASSAGES", 1000)
    path = tmp_path / "a.md"

    def in_process() -> Document:
        (document,) = unpacked_part("a.md", read_file_part(packed_job(path, "a.md"))).documents
        return document

    path.write_text("# a\nb\n" * 1000)
    assert len(in_process().cut()) == 1000
    path.write_text("# a\nb\n" * 1001)
    with pytest.raises(Unreadable, match="its 1001 passages are over the limit of 1000") as left_out:
        in_process()
    assert left_out.value.is_lasting


def test_lines_of_a_file_come_in_parts(reader: DocumentReader, tmp_path: Path) -> None:
    texts = [letter * (PART_BYTES // 2) for letter in "abc"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(["{", *(json.dumps({"text": text}) for text in texts)]))
    first = reader.read(path, "a.jsonl", lambda: None)
    assert first.rest is not None
    second = reader.read(path, "a.jsonl", lambda: None, first.rest)
    assert second.rest is None
    documents = (*first.documents, *second.documents)
    assert [document.name for document in documents] == ["a.jsonl#2", "a.jsonl#3", "a.jsonl#4"]
    assert [document.text for document in documents] == texts
    assert first.skipped == ((1, "it is no JSON in UTF-8"),)


def test_a_file_that_is_gone_says_so(reader: DocumentReader, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file or directory"):
        reader.read(tmp_path / "a.md", "a.md", lambda: None)


def test_a_closed_reader_reads_nothing(tmp_path: Path) -> None:
    reader = DocumentReader()
    reader.close()
    with pytest.raises(Unreadable, match="it was not read: this service ends"):
        read(reader, tmp_path / "a.md", b"Text.")
