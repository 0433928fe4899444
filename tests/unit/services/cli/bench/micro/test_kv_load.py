from __future__ import annotations

from services.cli.bench.micro.kv_load import KvLoad

LOAD = KvLoad(layers=3, layer_block_bytes=4096, blocks=8, transfers=2)


def test_a_load_comes_to_the_other_side_as_it_is() -> None:
    assert KvLoad.parse(LOAD.words()) == LOAD


def test_a_load_has_all_of_its_bytes_in_chunks_and_blocks_each_once() -> None:
    assert LOAD.total_bytes == 3 * 4096 * 8 * 2
    assert LOAD.chunks(LOAD.total_bytes) == 1
    assert LOAD.chunks(LOAD.total_bytes - 1) == 2
    for mode in ("nats, neighbours", "nats, scattered"):
        tables = LOAD.tables(mode, 0)
        assert [len(table) for table in tables] == [8, 8]
        assert sorted(block for table in tables for block in table) == list(range(16))


def test_scattered_blocks_lie_elsewhere_on_each_side() -> None:
    assert LOAD.tables("shm, neighbours", 0) == LOAD.tables("shm, neighbours", 1)
    assert LOAD.tables("shm, scattered", 0) != LOAD.tables("shm, scattered", 1)
