"""A newer index takes the place of the one that serves; one that cannot be used does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import structlog

from services.retriever import index_follower
from services.retriever.index_follower import IndexFollower
from services.retriever.served_corpus import ServedCorpus
from shared.config.named_corpus import NamedCorpus
from shared.retrieval.index.manifest import POINTER_NAME, read_pointer
from shared.retrieval.index.store import Generation, open_generation
from tests.support.small_index import SMALL_INDEX_MODEL, save_small_index


@pytest.fixture
def corpus() -> ServedCorpus:
    return ServedCorpus(NamedCorpus("handbook", "/handbook"))


@pytest.fixture
def follower(tmp_path: Path, corpus: ServedCorpus) -> IndexFollower:
    save_small_index(tmp_path, "old")
    follower = IndexFollower(tmp_path, SMALL_INDEX_MODEL, corpus)
    assert follower.follow()
    return follower


def texts(corpus: ServedCorpus) -> list[str]:
    assert corpus.searched is not None
    index = corpus.searched.index
    return [index.table.passage(row).text for row in range(len(index))]


def test_the_index_that_serves_is_not_replaced_by_itself(
    follower: IndexFollower, corpus: ServedCorpus
) -> None:
    before = corpus.searched
    assert not follower.follow()
    assert corpus.searched is before


def test_a_newer_index_replaces_it_once(
    tmp_path: Path, follower: IndexFollower, corpus: ServedCorpus
) -> None:
    generation = save_small_index(tmp_path, "new", "newer")
    assert follower.follow()
    assert not follower.follow()
    assert (texts(corpus), corpus.generation) == (["new", "newer"], generation)


def test_an_index_that_was_wiped_and_made_again_replaces_the_old_one_of_its_number(
    tmp_path: Path, follower: IndexFollower, corpus: ServedCorpus
) -> None:
    number, state = corpus.generation, corpus.state
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    assert not follower.follow()  # meanwhile there is none, and the old one serves
    assert texts(corpus) == ["old"]
    assert save_small_index(tmp_path, "new") == number
    assert follower.follow()
    assert not follower.follow()
    assert texts(corpus) == ["new"]
    assert corpus.state != state  # what was answered from the old one is not answered any more


def test_one_that_cannot_be_used_is_told_once_and_the_next_one_is_taken(
    tmp_path: Path, follower: IndexFollower, corpus: ServedCorpus
) -> None:
    save_small_index(tmp_path, "other", model="another/1")
    with structlog.testing.capture_logs() as logs:
        assert follower.follow()
        assert not follower.follow()
    assert [(entry["event"], "another embedding model" in entry["error"]) for entry in logs] == [
        ("index_unusable", True)
    ]
    assert texts(corpus) == ["old"]
    assert "another embedding model" in corpus.report.trouble
    save_small_index(tmp_path, "new")
    assert follower.follow()
    assert (texts(corpus), corpus.report.trouble) == (["new"], "")


def test_whatever_breaks_while_it_is_read_is_trouble_of_this_corpus_alone(
    tmp_path: Path, follower: IndexFollower, corpus: ServedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, embedder: str) -> Generation | None:
        raise RuntimeError(folder, embedder)

    monkeypatch.setattr(index_follower, "open_generation", broken)
    save_small_index(tmp_path, "new")
    assert follower.follow()
    assert (texts(corpus), corpus.trouble) == (["old"], "its index cannot be read (RuntimeError)")
    monkeypatch.setattr(index_follower, "open_generation", open_generation)
    assert follower.follow()
    assert (texts(corpus), corpus.trouble) == (["new"], "")


def test_trouble_ends_when_the_index_that_serves_is_the_current_one_again(
    tmp_path: Path, follower: IndexFollower, corpus: ServedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, embedder: str) -> Generation | None:
        raise RuntimeError(folder, embedder)

    before, pointer = (tmp_path / POINTER_NAME).read_bytes(), tmp_path / POINTER_NAME
    monkeypatch.setattr(index_follower, "open_generation", broken)
    save_small_index(tmp_path, "new")
    assert follower.follow()
    pointer.write_bytes(before)
    assert follower.follow()
    assert (texts(corpus), corpus.trouble) == (["old"], "")
    assert not follower.follow()


def test_where_there_is_no_index_there_is_none_until_one_is_made(
    tmp_path: Path, corpus: ServedCorpus
) -> None:
    follower = IndexFollower(tmp_path, SMALL_INDEX_MODEL, corpus)
    assert not follower.follow()
    assert (corpus.generation, corpus.state) == (0, "")
    save_small_index(tmp_path, "first")
    assert follower.follow()
    pointer = read_pointer(tmp_path)
    assert pointer is not None
    assert (texts(corpus), corpus.state) == (["first"], f"handbook/{pointer.manifest}")
