"""An index that was brought up to date, change after change, against one that is built from nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.retrieval.documents.seen_files import SETTLED_NS
from shared.retrieval.index import nearest
from shared.retrieval.index.build import Built, build_index
from shared.retrieval.index.manifest import FILE_NAMES
from shared.retrieval.index.nearest import HNSW, IVF_PQ
from tests.support.hashed_vectors import HashedVectors
from tests.support.killed import killed_at
from tests.support.read_here import read_documents_here

WORDS = ("gate", "port", "soup", "Öfen", "水門の鍵", "dam", "the", "of")


def later_ns() -> int:
    return time.time_ns() + 2 * SETTLED_NS


def nobody(_holder: int) -> None:
    raise AssertionError("nobody else indexes")


def built(corpus: Path, state: Path, embedder: HashedVectors | None = None) -> Built:
    vectors = (embedder or HashedVectors()).as_embedder()
    return build_index(str(corpus), state, vectors, lambda *_: None, waiting=nobody, clock_ns=later_ns)


def modes_of(folder: Path) -> dict[str, set[int]]:
    """The modes of the folders and of the files there, the folder's own among them."""
    found: dict[str, set[int]] = {"folder": set(), "file": set()}
    for path in (folder, *folder.rglob("*")):
        found["folder" if path.is_dir() else "file"].add(path.stat().st_mode & 0o777)
    return found


def test_an_index_is_its_owner_s_alone_also_one_that_others_could_read(tmp_path: Path) -> None:
    corpus, state = tmp_path / "corpus", tmp_path / "state"
    corpus.mkdir()
    write(corpus / "a.md", "A gate of iron.")
    before = os.umask(0)
    try:
        folder = built(corpus, state).folder
        private = {"folder": {0o700}, "file": {0o600}}
        assert modes_of(state) == private
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        built(corpus, state)  # nothing has changed
        assert modes_of(state) == private
    finally:
        os.umask(before)


def files_of(made: Built) -> dict[str, bytes]:
    generation = made.folder / "generations" / f"{made.generation:08}"
    return {name: (generation / name).read_bytes() for name in FILE_NAMES}


def write(file: Path, text: str) -> None:
    """As an editor does, so that it is another file."""
    new = file.with_name(".new")
    new.write_text(text)
    new.replace(file)


sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(lambda words: " ".join(words) + ".")
documents = st.lists(st.one_of(sentences, st.sampled_from(["# A", "## B", ""])), max_size=8).map("\n\n".join)
names = st.sampled_from(["a.md", "b.txt", "c.md", "d.jsonl", "e.md"])
edits = st.one_of(
    st.tuples(st.just("write"), names, documents),
    st.tuples(st.just("append"), names, sentences),
    st.tuples(st.just("remove"), names, st.just("")),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("copy"), names, names),
)


def apply(corpus: Path, edit: tuple[str, str, str]) -> None:
    what, name, more = edit
    file = corpus / name
    if what == "write":
        lines = (f'{{"id": {number}, "text": "{line}"}}' for number, line in enumerate(more.split("\n\n")))
        write(file, "\n".join(lines) if name == "d.jsonl" else more)
    elif not file.exists():
        return
    elif what == "append":
        write(file, file.read_text() + (f'\n{{"text": "{more}"}}' if name == "d.jsonl" else f"\n{more}"))
    elif what == "remove":
        file.unlink()
    elif name == "d.jsonl" or more == "d.jsonl":
        return
    elif what == "rename":
        file.rename(corpus / more)
    else:
        write(corpus / more, file.read_text())


@settings(max_examples=8, deadline=None)
@given(rounds=st.lists(st.lists(edits, min_size=1, max_size=4), min_size=1, max_size=5))
def test_random_edits_lead_to_the_index_that_is_built_from_nothing(
    rounds: list[list[tuple[str, str, str]]],
) -> None:
    with tempfile.TemporaryDirectory() as work, pytest.MonkeyPatch.context() as patch:
        read_documents_here(patch)
        corpus = Path(work, "corpus")
        corpus.mkdir()
        write(corpus / "z.md", "The last gate.")
        for number, edited in enumerate(rounds):
            for edit in edited:
                apply(corpus, edit)
            updated = built(corpus, Path(work, "state"))
            fresh = built(corpus, Path(work, f"state {number}"))
            assert files_of(updated) == files_of(fresh)
            assert updated.skipped == fresh.skipped


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(20):
        write(folder / f"{number:02}.txt", f"Passage {number} is about gate {number % 7}.")
    return folder


def test_a_change_embeds_and_reads_what_has_changed(corpus: Path, tmp_path: Path) -> None:
    embedder = HashedVectors()
    built(corpus, tmp_path / "state", embedder)
    write(corpus / "07.txt", "Something else.")
    (corpus / "19.txt").rename(corpus / "00b.txt")
    again = built(corpus, tmp_path / "state", embedder)
    assert (again.embedded, embedder.embedded) == (1, 21)
    assert files_of(again) == files_of(built(corpus, tmp_path / "other"))


def test_a_touched_corpus_keeps_its_generation(corpus: Path, tmp_path: Path) -> None:
    first = built(corpus, tmp_path / "state")
    os.utime(corpus / "03.txt", ns=(0, 0))
    assert built(corpus, tmp_path / "state").generation == first.generation


@pytest.mark.parametrize("kind", [HNSW, IVF_PQ])
def test_what_finds_vectors_follows_changes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nearest, "kind_for", lambda _vectors: kind)
    built(corpus, tmp_path / "state")
    (corpus / "03.txt").unlink()
    write(corpus / "05b.txt", "A new one.")
    index = built(corpus, tmp_path / "state").index
    monkeypatch.undo()
    assert index.nearest.kind == kind
    asked = HashedVectors().embed_passages(
        ["A new one.", "Passage 9 is about gate 2.", "Passage 3 is about gate 3."], lambda _: None
    )
    best = [hits[0] for hits in index.search(asked, 1)]
    assert [hit.text for hit in best[:2]] == ["A new one.", "Passage 9 is about gate 2."]
    assert [round(hit.score, 5) for hit in best[:2]] == [1, 1]
    assert best[2].score < 0.9


def test_whoever_is_killed_before_any_durable_step_leaves_an_index_that_the_next_one_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_documents_here(monkeypatch)
    corpus, state = tmp_path / "corpus", tmp_path / "state"
    corpus.mkdir()
    for number in range(4):
        write(corpus / f"{number}.txt", f"Passage {number} is about gate {number}.")
    built(corpus, tmp_path / "old")
    write(corpus / "2.txt", "Something else.")
    new = files_of(built(corpus, tmp_path / "new"))
    call = 0
    while True:
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(tmp_path / "old", state)
        killed = killed_at(call, monkeypatch, lambda: built(corpus, state))
        assert files_of(built(corpus, state)) == new
        if not killed:
            break
        call += 1
    assert call > 20
