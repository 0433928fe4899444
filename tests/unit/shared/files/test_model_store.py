"""Models that are kept: seen when they are whole, under names that are names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shared.errors import InvalidRequest, NotFound, Unavailable
from shared.files import model_store
from shared.files.model_store import (
    MAX_NAME_CHARS,
    KeptFile,
    KeptModel,
    check_kept_name,
    digest_of,
    find_kept,
    forget_model,
    incoming_folder,
    keep_model,
    kept_names,
    kept_path,
    store_folder,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def gather(folder: Path, content: bytes) -> tuple[KeptFile, ...]:
    (folder / "config.json").write_bytes(content)
    (folder / "rest.part").write_bytes(b"what a pull has left")
    return (KeptFile("config.json", len(content), hashlib.sha256(content).hexdigest()),)


def model_of(name: str, files: tuple[KeptFile, ...]) -> KeptModel:
    return KeptModel(name, "here", "", digest_of(files), "safetensors", "F32", 7, files)


def keep(name: str, content: bytes = b"{}") -> KeptModel:
    with incoming_folder(name) as folder:
        model = model_of(name, gather(folder, content))
        keep_model(model, folder)
    return model


@pytest.mark.parametrize("name", ["m", "org/m", "org/m@v1.0", "a.b_c-d", "m" * MAX_NAME_CHARS])
def test_what_is_kept_is_found_by_its_name_with_its_files_and_no_others(name: str) -> None:
    kept = keep(name)
    assert find_kept(name) == kept
    assert kept_names() == (name,)
    assert [each.name for each in kept.folder.iterdir()] == ["config.json"]
    assert kept_path(name) == kept.folder
    assert kept.folder.is_relative_to(store_folder())


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/../b", "/a", "a/", "a//b", "a/b/c", "a\\b", "a b", "a\x07", "a\n", "é"),
        *("a@", "@a", "a@b/c", "a@../b", ".a", "-a", "m" * (MAX_NAME_CHARS + 1), "a\x00b", "\u202ea"),
    ],
)
def test_what_is_no_name_is_refused_and_found_nowhere(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name of a model; write NAME or ORG/NAME") as refused:
        check_kept_name(name)
    assert refused.value.message.isprintable()
    assert find_kept(name) is None
    with pytest.raises(InvalidRequest), incoming_folder(name):
        raise AssertionError("it was let in")
    with pytest.raises(InvalidRequest):
        forget_model(name)
    assert not store_folder().exists()


def test_what_is_not_whole_is_not_seen_and_stays_for_the_next_pull() -> None:
    with incoming_folder("org/m") as folder:
        gather(folder, b"{}")
        assert (find_kept("org/m"), kept_names()) == (None, ())
    with incoming_folder("org/m") as folder:
        assert (folder / "rest.part").exists()


def test_the_entry_is_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(model_store, "write_file", fails)
    with pytest.raises(OSError, match="full"):
        keep("m")
    assert (find_kept("m"), kept_names()) == (None, ())
    monkeypatch.undo()


def test_another_version_takes_the_place_of_the_first_and_the_same_may_come_again() -> None:
    first, second = keep("m", b"{}"), keep("m", b"{ }")
    assert find_kept("m") == second
    assert not first.folder.exists()
    assert keep("m", b"{ }").folder == second.folder
    assert second.folder.is_dir()


def test_a_model_is_pulled_by_one_process_at_a_time_and_another_one_meanwhile() -> None:
    with incoming_folder("m"), incoming_folder("n"):
        with pytest.raises(Unavailable, match="another `penstock pull` fetches m"), incoming_folder("m"):
            raise AssertionError("it was let in")
        with pytest.raises(Unavailable):
            forget_model("m")


def test_what_is_removed_is_gone_with_what_a_pull_has_left() -> None:
    kept = keep("org/m")
    with incoming_folder("org/m") as folder:
        gather(folder, b"{}")
    assert forget_model("org/m") == kept.size_bytes + 2 + len(b"what a pull has left")
    assert (find_kept("org/m"), kept.folder.exists(), folder.exists()) == (None, False, False)
    with pytest.raises(NotFound, match="no model org/m is kept"):
        forget_model("org/m")


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"[" * 100_000,
        b"{}",
        b"7",
        b'{"files": [7]}',
        b'{"name":"n","source":"","revision":"","digest":"../../x","model_format":"","quantization":"",'
        b'"pulled_unix_us":0,"files":[]}',
    ],
)
def test_an_entry_that_is_damaged_is_a_sentence_and_can_be_removed(entry: bytes) -> None:
    keep("m")
    keep("n")
    (store_folder() / "entries" / "m.json").write_bytes(entry)
    with pytest.raises(InvalidRequest, match="cannot be used; remove it with `penstock rm m`"):
        find_kept("m")
    assert kept_names() == ("m", "n")
    forget_model("m")
    assert kept_names() == ("n",)
