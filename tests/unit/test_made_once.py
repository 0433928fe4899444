"""What tests copy is theirs to change, and is made once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.made_once import RUN_CACHE, MadeOnce


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeOnce:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"{RUN_CACHE}x"))
    return MadeOnce("words")


def never(_folder: Path) -> None:
    raise AssertionError("it is there already")


def test_a_changed_copy_changes_no_other(made: MadeOnce, tmp_path: Path) -> None:
    made.copy("a", tmp_path / "one", lambda folder: (folder / "word").write_text("first"))
    (tmp_path / "one" / "word").write_text("changed")
    MadeOnce("words").copy("a", tmp_path / "two", never)  # another process of the run
    assert (tmp_path / "two" / "word").read_text() == "first"


def test_other_names_and_kinds_are_other_folders(made: MadeOnce, tmp_path: Path) -> None:
    made.copy("a", tmp_path / "a", lambda folder: (folder / "word").write_text("a"))
    made.copy("b", tmp_path / "b", lambda folder: (folder / "word").write_text("b"))
    MadeOnce("others").copy("a", tmp_path / "c", lambda folder: (folder / "word").write_text("c"))
    assert [(tmp_path / name / "word").read_text() for name in "abc"] == ["a", "b", "c"]


def test_a_copy_takes_the_place_of_files_that_somebody_may_have_open(made: MadeOnce, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("old")
    with (tmp_path / "word").open() as opened:
        made.copy("a", tmp_path, lambda folder: (folder / "word").write_text("new"))
        assert opened.read() == "old"
    assert (tmp_path / "word").read_text() == "new"


def test_of_two_that_make_it_at_once_both_have_the_first_one_s(made: MadeOnce, tmp_path: Path) -> None:
    def slowly(folder: Path) -> None:
        made.copy("a", tmp_path / "fast", lambda other: (other / "word").write_text("first"))
        (folder / "word").write_text("second")

    made.copy("a", tmp_path / "slow", slowly)
    assert [(tmp_path / name / "word").read_text() for name in ("fast", "slow")] == ["first", "first"]


def test_what_could_not_be_made_is_made_again(made: MadeOnce, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        made.copy("a", tmp_path / "one", never)
    made.copy("a", tmp_path / "one", lambda folder: (folder / "word").write_text("made"))
    assert (tmp_path / "one" / "word").read_text() == "made"
