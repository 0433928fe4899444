from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import Any

import pytest
import torch

from shared.engine.memory.offload import OffloadStore
from shared.errors import InternalError, InvalidRequest

KB = 1 << 10
WAIT_S = 20.0


def kv(nbytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, nbytes // 16, 8), dtype=torch.uint8, generator=generator)


def both_tiers(folder: Path) -> OffloadStore:
    return OffloadStore(8 * KB, str(folder), 64 * KB)


def written(store: OffloadStore, key: str) -> FileIO:
    """The file of what is on disk under `key`, all of it."""
    assert store._disk is not None
    return store._disk._entries[key].writing.result(timeout=WAIT_S).file


def test_what_is_put_is_taken_once_and_unchanged() -> None:
    store = OffloadStore(8 * KB)
    assert store.put("a", kv(KB), 1.0)
    taken = store.take("a")
    assert taken is not None
    assert torch.equal(taken, kv(KB))
    assert store.take("a") is None
    store.check(set())


def test_what_memory_has_no_room_for_goes_to_disk_and_comes_back_unchanged(tmp_path: Path) -> None:
    store = both_tiers(tmp_path)
    for number in range(3):
        assert store.put(str(number), kv(6 * KB, number), 1.0)
    for number in (1, 2):
        written(store, str(number))
    assert (store.stats.memory_bytes, store.stats.disk_bytes) == (6 * KB, 12 * KB)
    for number in range(3):
        taken = store.take(str(number))
        assert taken is not None
        assert torch.equal(taken, kv(6 * KB, number))
    assert (store.stats.saved, store.stats.restored, store.stats.failed) == (3, 3, 0)
    store.close()


def test_what_no_tier_has_room_for_is_refused(tmp_path: Path) -> None:
    store = both_tiers(tmp_path)
    assert store.cost_us(65 * KB) is None
    assert not store.put("a", kv(65 * KB), 1.0)
    store.check(set())
    assert not OffloadStore(0).put("a", kv(16), 1.0)


def test_no_file_is_ever_seen_in_the_folder(tmp_path: Path) -> None:
    store = both_tiers(tmp_path)
    store.put("a", kv(32 * KB), 1.0)
    assert list(tmp_path.iterdir()) == []
    store.drop("a")
    store.close()


def open_files(folder: Path) -> int:
    """How many there are of its own: other tests' ends may come meanwhile."""
    links = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))
    found = 0
    for link in links:
        with suppress(FileNotFoundError):  # of the listing, or closed since
            found += os.readlink(link).startswith(str(folder))
    return found


@pytest.mark.parametrize("how", ["take", "drop", "close", "forget"])
def test_every_file_is_closed(tmp_path: Path, how: str) -> None:
    store = both_tiers(tmp_path)
    for key in "ab":
        store.put(key, kv(16 * KB), 1.0)
        written(store, key)
    assert open_files(tmp_path) == 2
    if how == "close":
        store.close()
    elif how == "forget":
        del store
    else:
        for key in "ab":
            getattr(store, how)(key)
    assert open_files(tmp_path) == 0


def test_a_store_that_is_collected_waits_for_nobody_as_that_may_be_in_any_thread(tmp_path: Path) -> None:
    store, release = both_tiers(tmp_path), Event()
    assert store._disk is not None
    busy = store._disk._thread.submit(release.wait, WAIT_S)
    del store
    try:
        assert not busy.done()
    finally:
        release.set()


def test_a_store_that_is_closed_has_waited_for_its_disk(tmp_path: Path) -> None:
    store = both_tiers(tmp_path)
    assert store._disk is not None
    busy = store._disk._thread.submit(Event().wait, 0.05)
    store.close()
    assert busy.done()


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_kv_that_comes_back_changed_is_lost_and_counted(tmp_path: Path, damage: str) -> None:
    store = both_tiers(tmp_path)
    store.put("a", kv(16 * KB), 1.0)
    file = written(store, "a")
    if damage == "flip":
        os.pwrite(file.fileno(), bytes([kv(16 * KB).flatten()[100] ^ 1]), 100)
    else:
        os.ftruncate(file.fileno(), 100)
    assert store.take("a") is None
    assert store.stats.failed == 1
    store.check(set())


def test_what_a_full_disk_did_not_take_is_lost_counted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = both_tiers(tmp_path)
    monkeypatch.setattr("shared.engine.memory.disk_tier.TemporaryFile", lambda **_: FullDisk())
    assert store.put("b", kv(16 * KB), 1.0)
    assert store._disk is not None
    assert store._disk._entries["b"].writing.exception(timeout=WAIT_S) is not None
    assert FullDisk.closed
    assert (store.stats.failed, store.stats.disk_bytes) == (1, 0)
    assert store.landed("b")
    assert store.take("b") is None
    assert store.put("c", kv(4 * KB), 1.0)  # memory is not the disk's fault
    store.check({"c"})


class SlowDisk:
    """Its files take nothing, and give nothing back, until `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = Event()

    def file(self, **options: Any) -> SlowFile:
        return SlowFile(self, TemporaryFile(**options))


class SlowFile:
    def __init__(self, disk: SlowDisk, file: FileIO) -> None:
        self.disk = disk
        self.file = file

    def write(self, content: memoryview) -> int:
        assert self.disk.goes_on.wait(WAIT_S)
        return self.file.write(content)

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr("shared.engine.memory.disk_tier.TemporaryFile", disk.file)
    yield disk
    disk.goes_on.set()


def test_what_is_not_written_yet_is_taken_from_memory(tmp_path: Path, slow_disk: SlowDisk) -> None:
    store = both_tiers(tmp_path)
    assert store.put("a", kv(16 * KB), 1.0)
    assert store.landed("a")
    taken = store.take("a")
    assert taken is not None
    assert torch.equal(taken, kv(16 * KB))
    store.check(set())
    slow_disk.goes_on.set()  # the store waits for it when it goes


def test_a_disk_that_does_not_keep_up_is_given_no_more_than_so_much(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.engine.memory.disk_tier.MAX_WRITING_BYTES", 32 * KB)
    store = OffloadStore(0, str(tmp_path), 64 * KB)
    assert store.put("a", kv(16 * KB), 1.0)
    assert store.put("b", kv(16 * KB), 1.0)
    assert store.cost_us(16) is None
    assert not store.put("c", kv(16), 1.0)
    slow_disk.goes_on.set()
    for key in "ab":
        assert store._disk is not None
        store._disk._entries[key].writing.result(timeout=WAIT_S)
    assert store.put("c", kv(16), 1.0)
    store.check({"a", "b", "c"})


class FullDisk:
    """A file on a disk that takes 4 KiB and no more."""

    closed = False
    taken = 0

    def write(self, _: memoryview) -> int:
        if self.taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.taken = 4 * KB
        return self.taken

    def close(self) -> None:
        FullDisk.closed = True


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot hold files"):
        both_tiers(tmp_path / "missing")


def test_check_finds_what_nobody_explains() -> None:
    store = OffloadStore(8 * KB)
    store.put("a", kv(KB), 1.0)
    store.check({"a"})
    with pytest.raises(InternalError, match="offloaded"):
        store.check(set())
    with pytest.raises(InternalError, match="offloaded"):
        store.check({"a", "b"})


def test_disk_costs_more_than_memory_and_measured_copies_change_the_cost(tmp_path: Path) -> None:
    store = OffloadStore(256 * KB, str(tmp_path), 256 * KB)
    in_memory = store.cost_us(128 * KB)
    assert in_memory is not None
    store.put("a", kv(256 * KB), 1e6)
    slower = store.cost_us(128 * KB)
    assert slower is not None
    assert slower > in_memory  # memory is full: the disk would take it
    store.drop("a")
    remeasured = store.cost_us(128 * KB)
    assert remeasured is not None
    assert remeasured > in_memory
