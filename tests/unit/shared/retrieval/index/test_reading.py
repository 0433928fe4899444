"""What of a corpus is read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import TooLarge
from shared.retrieval.documents import corpus as corpus_module
from shared.retrieval.documents import document_reader
from shared.retrieval.documents.corpus import CorpusReader
from shared.retrieval.documents.document import Document, FilePart, FilePlace, Unreadable
from shared.retrieval.documents.document_reader import DocumentReader
from shared.retrieval.documents.passages import Passage
from shared.retrieval.documents.seen_files import SETTLED_NS
from shared.retrieval.index.passage_table import PassageTable
from shared.retrieval.index.reading import Reading, read_corpus
from shared.retrieval.index.reading_progress import ReadSoFar

NOTHING = PassageTable.of_files(())


def later_ns() -> int:
    """When everything that is there has settled."""
    return time.time_ns() + 2 * SETTLED_NS


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.md").write_text("# Gate\nIt opens.\n\n# Port\n50051.\n")
    (tmp_path / "b.txt").write_text("Soup.")
    (tmp_path / "c.jsonl").write_text('{"id": 1, "text": "One."}\n{"id": 2, "text": "Two."}\nno JSON\n')
    (tmp_path / "d.md").write_text("\n")
    return tmp_path


@pytest.fixture
def read_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the files that were read."""
    names: list[str] = []
    read = CorpusReader.read

    def noted(self: CorpusReader, path: Path, *args: object) -> object:
        names.append(path.name)
        return read(self, path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CorpusReader, "read", noted)
    return names


def first(corpus: Path) -> Reading:
    return read_corpus(str(corpus), NOTHING, [], later_ns)


def again(corpus: Path, before: Reading) -> Reading:
    return read_corpus(str(corpus), before.table, before.seen, later_ns)


def texts(reading: Reading) -> list[tuple[str, str]]:
    table = reading.table
    return [(table.file_of(row).name, table.passage(row).text) for row in range(len(table))]


def test_how_far_the_reading_is_is_told_before_each_file_and_after_each_document(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_reader, "LOOK_S", 60.0)  # else a slow file tells it again and again
    told: list[ReadSoFar] = []
    read_corpus(str(corpus), NOTHING, [], later_ns, told.append)
    assert [each.documents for each in told] == [0, 1, 1, 2, 2, 3, 4, 4, 5]
    assert [each.files for each in told] == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    sizes = [path.stat().st_size for path in sorted(corpus.iterdir())]
    assert {(each.of_files, each.of_bytes) for each in told} == {(4, sum(sizes))}
    before_c = sum(sizes[:2])
    assert [each.bytes for each in told[4:8]] == [before_c, before_c + 4, before_c + 8, sum(sizes[:3])]


def test_files_that_are_as_they_were_are_no_part_of_what_is_to_be_read(corpus: Path) -> None:
    before, told = first(corpus), list[ReadSoFar]()
    (corpus / "b.txt").write_text("More soup.")
    read_corpus(str(corpus), before.table, before.seen, later_ns, told.append)
    assert {(each.of_files, each.of_bytes) for each in told} == {(1, 10)}
    assert (told[0].files, told[-1].files, told[-1].bytes) == (0, 1, 10)


def test_whoever_is_told_of_the_reading_may_end_it(corpus: Path, read_names: list[str]) -> None:
    def tell(so_far: ReadSoFar) -> None:
        if so_far.documents == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        read_corpus(str(corpus), NOTHING, [], later_ns, tell)
    assert read_names == ["a.md", "b.txt"]


def test_files_that_are_as_they_were_are_not_read(corpus: Path, read_names: list[str]) -> None:
    before = first(corpus)
    assert read_names == ["a.md", "b.txt", "c.jsonl", "d.md"]
    read_names.clear()
    now = again(corpus, before)
    assert read_names == []
    assert now.table is before.table
    assert (
        now.skipped
        == before.skipped
        == (("c.jsonl, line 3", "it is no JSON in UTF-8"), ("d.md", "it has no text"))
    )


def rewritten_with_its_old_times(file: Path) -> None:
    stat = file.stat()
    file.write_text("Soap.")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replaced(file: Path) -> None:
    new = file.with_suffix(".new")
    new.write_text("Soap.")
    new.replace(file)


@pytest.mark.parametrize("change", [rewritten_with_its_old_times, replaced])
def test_a_file_of_the_same_size_and_times_is_read_when_it_was_written(
    corpus: Path, read_names: list[str], change: object
) -> None:
    before = first(corpus)
    read_names.clear()
    assert callable(change)
    change(corpus / "b.txt")
    now = again(corpus, before)
    assert read_names == ["b.txt"]
    assert texts(now)[2] == ("b.txt", "Soap.")
    assert now.origin.tolist() == [0, 1, -1, 3, 4]


def test_a_file_that_was_written_just_before_is_read_once_more(corpus: Path, read_names: list[str]) -> None:
    before = read_corpus(str(corpus), NOTHING, [], time.time_ns)
    read_names.clear()
    now = again(corpus, before)
    assert read_names == ["a.md", "b.txt", "c.jsonl", "d.md"]
    assert now.table is before.table
    read_names.clear()
    again(corpus, now)
    assert read_names == []


def test_a_file_that_changes_while_it_is_read_is_read_once_more(
    corpus: Path, read_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DocumentReader.read

    def changed(
        self: DocumentReader, path: Path, name: str, look: Callable[[], None], start: FilePlace
    ) -> FilePart:
        part = read(self, path, name, look, start)
        if path.name == "b.txt":
            path.write_text("Soap.")
        return part

    with monkeypatch.context() as patch:
        patch.setattr(DocumentReader, "read", changed)
        before = first(corpus)
    read_names.clear()
    assert texts(again(corpus, before))[2] == ("b.txt", "Soap.")
    assert read_names == ["b.txt"]


def test_a_file_that_could_not_be_read_is_tried_again(corpus: Path, read_names: list[str]) -> None:
    (corpus / "e.md").symlink_to("nowhere.txt")
    (corpus / "f.md").write_bytes(b"\xff")
    before = first(corpus)
    read_names.clear()
    assert again(corpus, before).skipped == before.skipped
    assert read_names == ["e.md", "f.md"]


def test_a_file_that_takes_too_long_is_not_tried_again_until_it_has_changed(
    corpus: Path, read_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DocumentReader.read

    def long(
        self: DocumentReader, path: Path, name: str, look: Callable[[], None], start: FilePlace
    ) -> FilePart:
        if path.name == "b.txt":
            raise Unreadable("it takes longer than 30 s to read", is_lasting=True)
        return read(self, path, name, look, start)

    with monkeypatch.context() as patch:
        patch.setattr(DocumentReader, "read", long)
        before = first(corpus)
    read_names.clear()
    assert again(corpus, before).skipped == before.skipped
    assert read_names == []
    (corpus / "b.txt").write_text("Soap.")
    assert texts(again(corpus, before))[2] == ("b.txt", "Soap.")


def test_of_a_file_that_has_changed_only_documents_that_have_are_cut(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = first(corpus)
    cut: list[str] = []

    cut_document = Document.cut

    def noted(document: Document) -> tuple[Passage, ...]:
        cut.append(document.text)
        return cut_document(document)

    monkeypatch.setattr(Document, "cut", noted)
    file = corpus / "c.jsonl"
    file.write_text(
        '{"id": 0, "text": "New."}\n{"id": 1, "text": "One.", "metadata": {"a": 1}}\n'
        '{"id": 2, "text": "Two."}\n'
    )
    now = again(corpus, before)
    assert cut == ["New.", "One."]
    assert now.origin.tolist() == [0, 1, 2, -1, -1, 4]
    assert [file.metadata for file in now.table.files][2:5] == [(), (("a", "1"),), ()]


def test_two_documents_of_one_name_are_two(corpus: Path) -> None:
    file = corpus / "c.jsonl"
    file.write_text('{"id": 1, "text": "One."}\n{"id": 1, "text": "One."}\n')
    before = first(corpus)
    file.write_text('{"id": 1, "text": "One."}\n{"id": 1, "text": "One."}\n\n')
    now = again(corpus, before)
    assert texts(now) == texts(before)
    assert len(set(now.origin[now.origin >= 0].tolist())) == len(now.origin[now.origin >= 0])


@pytest.mark.parametrize("limit", ["MAX_DOCUMENTS", "MAX_CORPUS_CHARS"])
def test_what_is_not_read_again_counts_towards_the_limits(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    before = first(corpus)
    monkeypatch.setattr(corpus_module, limit, 4)
    with pytest.raises(TooLarge, match="index a smaller folder"):
        again(corpus, before)


def test_what_was_seen_of_other_documents_does_not_count(corpus: Path, read_names: list[str]) -> None:
    before = first(corpus)
    read_names.clear()
    now = read_corpus(str(corpus), before.table, before.seen[:-1], later_ns)
    assert read_names == ["a.md", "b.txt", "c.jsonl", "d.md"]
    assert texts(now) == texts(before)
