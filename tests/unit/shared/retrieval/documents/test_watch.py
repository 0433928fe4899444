from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.retrieval.documents.watch import CorpusWatch


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("one")
    return folder


@pytest.fixture
def watch(corpus: Path) -> CorpusWatch:
    return CorpusWatch(str(corpus))


def test_a_corpus_that_stays_as_it_is_has_not_changed(watch: CorpusWatch) -> None:
    assert [watch.changed() for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("change", ["write", "add", "remove", "rename"])
def test_a_change_is_told_once_when_it_is_over(corpus: Path, watch: CorpusWatch, change: str) -> None:
    file = corpus / "a.md"
    match change:
        case "write":
            file.write_text("two and more")
        case "add":
            (corpus / "sub" / "b.txt").write_text("two")
        case "remove":
            file.unlink()
        case "rename":
            file.rename(corpus / "c.md")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_what_still_changes_is_waited_for(corpus: Path, watch: CorpusWatch) -> None:
    for text in ("two", "three", "four or more"):
        (corpus / "a.md").write_text(text)
        assert not watch.changed()
    assert watch.changed()


def test_what_is_no_document_does_not_count(corpus: Path, watch: CorpusWatch) -> None:
    (corpus / "program.py").write_text("x = 1")
    (corpus / ".hidden.md").write_text("x")
    assert [watch.changed() for _ in range(2)] == [False] * 2


def test_a_folder_that_goes_and_comes_back_is_seen(corpus: Path, watch: CorpusWatch) -> None:
    shutil.rmtree(corpus)
    assert [watch.changed() for _ in range(3)] == [False, True, False]
    corpus.mkdir()
    (corpus / "a.md").write_text("back")
    assert [watch.changed() for _ in range(3)] == [False, True, False]
