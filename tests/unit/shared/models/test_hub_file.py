"""A file of the hub over lines that break, at a hub on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ChecksumMismatch, Unavailable
from shared.models.hub_file import MAX_TRIES, PART_SUFFIX, fetch_file
from tests.support.hub import Hub, running_hub

CONTENT = bytes(range(256)) * 512


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "m.safetensors").write_bytes(CONTENT)
    with running_hub("org/m", folder) as running:
        yield running


class Fetch:
    def __init__(self, hub: Hub, folder: Path) -> None:
        self.url = f"{hub.url}/org/m/resolve/main/m.safetensors"
        self.target = folder / "m.safetensors"
        self.part = folder / f"m.safetensors{PART_SUFFIX}"
        self.noted: list[int] = []
        self.slept_s: list[float] = []

    def run(self, size_bytes: int = len(CONTENT), **headers: str) -> None:
        fetch_file(self.url, headers, self.target, size_bytes, self.noted.append, sleep=self.slept_s.append)


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Fetch:
    return Fetch(hub, tmp_path)


def test_a_file_comes_whole_and_only_once(hub: Hub, fetch: Fetch) -> None:
    for _ in range(2):
        fetch.run(Authorization="Bearer k")
        assert fetch.target.read_bytes() == CONTENT
    assert hub.authorized == ["Bearer k"]
    assert sum(fetch.noted) == 2 * len(CONTENT)


def test_what_is_here_is_not_asked_for_again(hub: Hub, fetch: Fetch) -> None:
    fetch.part.write_bytes(CONTENT[:1000])
    fetch.run()
    assert fetch.target.read_bytes() == CONTENT
    assert hub.ranges == ["bytes=1000-"]
    assert fetch.noted[0] == 1000
    assert sum(fetch.noted) == len(CONTENT)


def test_a_line_that_breaks_is_tried_anew_behind_what_came(hub: Hub, fetch: Fetch) -> None:
    hub.held, hub.cuts = ("m.safetensors",), True
    hub.go_on.set()
    fetch.run()  # each time half of what is left
    assert fetch.target.read_bytes() == CONTENT
    assert hub.ranges[0] == f"bytes={len(CONTENT) // 2}-"
    assert sum(fetch.noted) == len(CONTENT)


def test_a_hub_that_is_gone_is_given_up_and_the_part_stays(hub: Hub, fetch: Fetch, tmp_path: Path) -> None:
    fetch.url = "http://127.0.0.1:9/m.safetensors"
    fetch.part.write_bytes(CONTENT[:1_000_000])
    with pytest.raises(Unavailable, match=r"does not come from the hub .*it goes on behind 0\.1 MB"):
        fetch.run(len(CONTENT) + 1)
    assert fetch.part.read_bytes() == CONTENT
    assert fetch.slept_s == [2.0**n for n in range(MAX_TRIES - 1)]


def test_a_file_that_is_refused_is_not_tried_again(hub: Hub, fetch: Fetch) -> None:
    fetch.url = f"{hub.url}/org/m/resolve/main/other.safetensors"
    with pytest.raises(Unavailable, match=r"the hub refuses m\.safetensors \(404"):
        fetch.run()
    assert fetch.slept_s == []


def test_a_file_that_is_longer_than_stated_is_refused_before_all_of_it_has_come(fetch: Fetch) -> None:
    with pytest.raises(ChecksumMismatch, match="longer than the hub says"):
        fetch.run(100)
    assert not fetch.part.exists()
    assert not fetch.target.exists()


def test_a_key_of_the_hub_goes_nowhere_that_the_hub_sends_to(hub: Hub, fetch: Fetch) -> None:
    fetch.part.write_bytes(CONTENT[:1000])
    with running_hub("org/m", hub.folder) as storage:
        hub.moved_to = storage.url
        fetch.run(Authorization="Bearer k")
    assert fetch.target.read_bytes() == CONTENT
    assert (hub.authorized, storage.authorized, storage.ranges) == (["Bearer k"], [None], ["bytes=1000-"])
