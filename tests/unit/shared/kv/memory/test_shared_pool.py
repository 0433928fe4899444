"""Pool memory across processes: what proves it, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from shared.errors import PenstockError, ProtocolError, Unavailable
from shared.kv.memory.plain_pool import PlainLayout
from shared.kv.memory.shared_pool import NOT_SHARED, PoolMapping, SharedPool
from shared.messages import KvSegment

LAYOUT = PlainLayout(2, 4096)
NBYTES = 2 * 4 * 4096


def test_what_is_written_to_the_pool_is_read_through_the_mapping() -> None:
    pool = SharedPool.create(NBYTES)
    mapping = PoolMapping.open(pool.segment, LAYOUT)
    pool.memory[5 * 4096 : 5 * 4096 + 3] = b"abc"
    view = mapping.memory.read(1, [1])
    assert bytes(view[:3]) == b"abc"
    assert view.readonly
    assert mapping.memory.num_blocks == 4
    view.release()
    mapping.close()
    pool.close()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"nonce": b"\0" * 32}, Unavailable),
        ({"nonce": b"short"}, ProtocolError),
        ({"nbytes": NBYTES // 2}, Unavailable),
        ({"nbytes": NBYTES * 2}, Unavailable),
        ({"nbytes": NBYTES + 1}, ProtocolError),
        ({"nbytes": 0}, ProtocolError),
        ({"nbytes": -NBYTES}, ProtocolError),
        ({"nbytes": 1 << 62}, ProtocolError),
        ({"fd": -1}, ProtocolError),
        ({"fd": 1 << 40}, Unavailable),
        ({"fd": 0}, Unavailable),
        ({"pid": -1}, ProtocolError),
        ({"pid": 1 << 60}, Unavailable),
    ],
)
def test_a_wrong_description_is_refused(changes: dict[str, int | bytes], error: type[PenstockError]) -> None:
    pool = SharedPool.create(NBYTES)
    segment = replace(pool.segment, **changes)  # type: ignore[arg-type]  # values of several fields
    with pytest.raises(error):
        PoolMapping.open(segment, LAYOUT)
    pool.close()


def test_an_unshared_pool_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="not shared"):
        PoolMapping.open(NOT_SHARED, LAYOUT)


def test_a_closed_pool_cannot_be_mapped_any_more() -> None:
    pool = SharedPool.create(NBYTES)
    pool.close()
    with pytest.raises(Unavailable):
        PoolMapping.open(pool.segment, LAYOUT)


def test_memory_that_its_owner_could_shorten_is_refused() -> None:
    fd = os.memfd_create("penstock-kv", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, 4096 + NBYTES)
        with pytest.raises(Unavailable, match="size"):
            PoolMapping.open(KvSegment(os.getpid(), fd, NBYTES, b"n" * 32), LAYOUT)
    finally:
        os.close(fd)


def test_the_owner_cannot_shorten_a_shared_pool() -> None:
    pool = SharedPool.create(NBYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(pool.segment.fd, 4096)
    pool.close()
