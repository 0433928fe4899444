"""Building, keeping and updating the index of a folder, with the real embedder."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index import build
from shared.retrieval.index.build import Built, build_index, index_folder
from shared.retrieval.index.manifest import FORMAT, read_pointer
from shared.retrieval.index.unfinished import UNFINISHED_NAME
from tests.support.read_here import read_documents_here


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.set_num_threads(1)
    return Embedder.load()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "gate.md").write_text(
        "# Gate\nThe gate opens at dawn.\n\n# Port\nThe port of the gate is 50051.\n"
    )
    (folder / "soup.txt").write_text("Cook the carrots with onions for twenty minutes.")
    return folder


@pytest.fixture(autouse=True)
def documents_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    read_documents_here(monkeypatch)


def nobody(_holder: int) -> None:
    raise AssertionError("nobody else indexes")


def built(corpus: Path, embedder: Embedder) -> Built:
    return build_index(str(corpus), corpus.parent / "state", embedder, lambda *_: None, waiting=nobody)


def best(made: Built, embedder: Embedder, question: str) -> tuple[str, str]:
    hit = made.index.search(embedder.embed([question]), 1)[0][0]
    return hit.source, hit.text


def test_a_question_finds_its_passage_with_file_and_heading(corpus: Path, embedder: Embedder) -> None:
    made = built(corpus, embedder)
    assert best(made, embedder, "Which port does the gate have?") == (
        "gate.md § Port",
        "The port of the gate is 50051.",
    )
    assert best(made, embedder, "How do I make vegetable soup?")[0] == "soup.txt"


def test_hits_come_best_first_and_never_more_than_there_are(corpus: Path, embedder: Embedder) -> None:
    hits = built(corpus, embedder).index.search(embedder.embed(["gate"]), 16)[0]
    assert len(hits) == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_unchanged_files_are_not_embedded_again(corpus: Path, embedder: Embedder) -> None:
    first = built(corpus, embedder)
    assert first.embedded == 3
    (corpus / "soup.txt").write_text("Cook the potatoes.")
    (corpus / "gate.md").rename(corpus / "door.md")
    second = built(corpus, embedder)
    assert second.embedded == 1
    assert best(second, embedder, "Which port?")[0] == "door.md § Port"
    assert np.array_equal(second.index.vectors[:2], first.index.vectors[:2])
    assert built(corpus, embedder).embedded == 0


def test_progress_tells_how_many_of_how_many(corpus: Path, embedder: Embedder) -> None:
    seen: list[tuple[int, int]] = []
    build_index(
        str(corpus), corpus.parent / "state", embedder, lambda *pair: seen.append(pair), waiting=nobody
    )
    assert seen == [(0, 3), (3, 3)]


@pytest.mark.parametrize("name", ["generations/*/vectors.npy", "generations/*/manifest.json", "current"])
def test_a_damaged_index_is_made_anew_with_a_warning(corpus: Path, embedder: Embedder, name: str) -> None:
    made = built(corpus, embedder)
    (path,) = made.folder.glob(name)
    path.write_bytes(path.read_bytes()[:-5] + b"other")
    with structlog.testing.capture_logs() as logs:
        again = built(corpus, embedder)
    assert again.embedded == 3
    assert [entry["event"] for entry in logs] == ["index_unusable"]
    assert best(again, embedder, "Which port?")[0] == "gate.md § Port"


def test_an_index_of_other_rules_is_made_anew(
    corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(corpus, embedder)
    monkeypatch.setattr(build, "MODEL", "another model")
    with structlog.testing.capture_logs() as logs:
        assert built(corpus, embedder).embedded == 3
    assert "made by another embedding model" in logs[0]["error"]


def test_an_index_of_another_format_is_made_anew_with_a_warning(corpus: Path, embedder: Embedder) -> None:
    made = built(corpus, embedder)
    pointer = json.loads((made.folder / "current").read_text())
    (made.folder / "current").write_text(json.dumps(pointer | {"format": FORMAT - 1}))
    with structlog.testing.capture_logs() as logs:
        assert built(corpus, embedder).embedded == 3
    assert logs[0]["error"] == f"its format is {FORMAT - 1}, and that of this version {FORMAT}"


def test_an_index_that_nothing_has_changed_in_stays_the_same_one(corpus: Path, embedder: Embedder) -> None:
    first = built(corpus, embedder)
    again = built(corpus, embedder)
    assert (first.generation, again.generation, again.embedded) == (1, 1, 0)
    (corpus / "soup.txt").write_text("Cook the potatoes.")
    assert built(corpus, embedder).generation == 2


def test_only_changed_passages_of_a_changed_file_are_embedded(corpus: Path, embedder: Embedder) -> None:
    built(corpus, embedder)
    gate = corpus / "gate.md"
    gate.write_text(gate.read_text().replace("50051", "50052"))
    assert built(corpus, embedder).embedded == 1


def test_a_text_that_occurs_twice_is_embedded_once(corpus: Path, embedder: Embedder) -> None:
    (corpus / "again.txt").write_text((corpus / "soup.txt").read_text())
    made = built(corpus, embedder)
    assert (made.embedded, len(made.index)) == (3, 4)
    again, soup = (row for row in range(4) if made.index.table.file_of(row).name in {"again.txt", "soup.txt"})
    assert np.array_equal(made.index.vectors[again], made.index.vectors[soup])


def test_a_passage_is_found_by_its_words_too(corpus: Path, embedder: Embedder) -> None:
    index = built(corpus, embedder).index
    scores, rows = index.lexical.search(["carrots with ONIONS", "50051"], 2)
    assert [
        index.hit(int(row), float(score)).source for row, score in zip(rows[:, 0], scores[:, 0], strict=True)
    ] == [
        "soup.txt",
        "gate.md § Port",
    ]
    assert rows[:, 1].tolist() == [-1, -1]


def test_two_corpora_have_two_indexes(tmp_path: Path) -> None:
    assert index_folder(tmp_path, "/a") != index_folder(tmp_path, "/b")


def test_two_builders_at_once_embed_everything_once(corpus: Path, embedder: Embedder) -> None:
    made: list[Built] = []

    def build_once() -> None:
        state = corpus.parent / "state"
        made.append(build_index(str(corpus), state, embedder, lambda *_: None, waiting=lambda _: None))

    threads = [threading.Thread(target=build_once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.embedded for one in made) == [0, 3]


def test_documents_without_text_and_too_many_passages_are_refused(
    corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MAX_PASSAGES", 2)
    with pytest.raises(TooLarge, match="3 passages, more than 2"):
        built(corpus, embedder)
    for path in corpus.iterdir():
        path.write_text("\n")
    with pytest.raises(NotFound, match="no text"):
        built(corpus, embedder)


def test_a_state_directory_that_cannot_be_written_is_named(corpus: Path, embedder: Embedder) -> None:
    (corpus.parent / "file").write_text("")
    with pytest.raises(InvalidRequest, match="--state-dir"):
        build_index(str(corpus), corpus.parent / "file", embedder, lambda *_: None, waiting=nobody)


@pytest.mark.parametrize(("written", "told"), [(str(4711), 4711), ("", 0)])
def test_who_must_wait_for_another_hears_for_whom(
    written: str, told: int, corpus: Path, embedder: Embedder
) -> None:
    state = corpus.parent / "state"
    folder = index_folder(state, str(corpus))
    folder.mkdir(parents=True)
    heard: list[int] = []
    with (folder / build.LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(written)
        lock.flush()

        def waiting(holder: int) -> None:
            heard.append(holder)
            fcntl.flock(lock, fcntl.LOCK_UN)

        made = build_index(str(corpus), state, embedder, lambda *_: None, waiting=waiting)
    assert heard == [told]
    assert len(made.index) == 3


def test_the_one_that_indexes_says_who_it_is(corpus: Path, embedder: Embedder) -> None:
    state, told = corpus.parent / "state", []
    lock = index_folder(state, str(corpus)) / build.LOCK_NAME
    build_index(str(corpus), state, embedder, lambda *_: told.append(lock.read_text()), waiting=nobody)
    assert set(told) == {str(os.getpid())}


class Interrupted(BaseException):
    """As a KeyboardInterrupt, which pytest keeps for itself."""


def interrupted_after(embedder: Embedder, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedder breaks off in the call after so many."""
    embed, left = embedder.embed_passages, iter(range(calls))

    def embed_or_break(*args: Any) -> Vectors:
        if next(left, None) is None:
            raise Interrupted
        return embed(*args)

    monkeypatch.setattr(embedder, "embed_passages", embed_or_break)


def break_off(corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An indexing that keeps what it has after each passage, and is interrupted in its second one."""
    with monkeypatch.context() as patch:
        patch.setattr(build, "GROUP_PASSAGES", 1)
        interrupted_after(embedder, 1, patch)
        with pytest.raises(Interrupted):
            built(corpus, embedder)


def test_what_was_interrupted_goes_on_where_it_was(
    corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(corpus, embedder, monkeypatch)
    again = built(corpus, embedder)
    assert (again.embedded, len(again.index)) == (2, 3)
    assert best(again, embedder, "Which port?")[0] == "gate.md § Port"
    assert not (again.folder / UNFINISHED_NAME).exists()


def test_what_is_interrupted_leaves_the_old_index_as_it_was(
    corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = built(corpus, embedder)
    for path in corpus.iterdir():
        path.write_text(path.read_text() + "\nAnd more.\n")
    break_off(corpus, embedder, monkeypatch)
    pointer = read_pointer(old.folder)
    assert pointer is not None
    assert (pointer.generation, pointer.manifest) == (old.generation, old.digest)
    assert best(old, embedder, "Which port?") == ("gate.md § Port", "The port of the gate is 50051.")


def test_a_document_without_text_is_told(corpus: Path, embedder: Embedder) -> None:
    (corpus / "empty.md").write_text("\n")
    assert built(corpus, embedder).skipped == (("empty.md", "it has no text"),)


def test_several_threads_embed_what_one_does(embedder: Embedder) -> None:
    texts = [f"Passage number {number} is about {'water ' * (number % 7)}." for number in range(100)]
    done: list[int] = []
    beside = Embedder.load(threads=2).embed(texts, done.append)
    assert done == sorted(set(done))
    assert done[-1] == len(texts)
    np.testing.assert_allclose(beside, embedder.embed(texts), atol=1e-5)
