from __future__ import annotations

import mmap

import pytest
import torch

from shared.engine import KvLayout, KvPool
from shared.errors import InvalidRequest

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=4, dtype="float32")


def test_block_bytes_are_keys_and_values_of_sixteen_tokens() -> None:
    assert LAYOUT.layer_block_bytes == 2 * 16 * 2 * 4 * 4
    assert LAYOUT.block_bytes == 3 * LAYOUT.layer_block_bytes
    assert KvLayout(3, 2, 4, "bfloat16").block_bytes == LAYOUT.block_bytes // 2


def test_fingerprints_are_equal_exactly_when_layouts_are() -> None:
    others = [KvLayout(4, 2, 4, "float32"), KvLayout(3, 4, 2, "float32"), KvLayout(3, 2, 4, "bfloat16")]
    assert LAYOUT.fingerprint() == KvLayout(3, 2, 4, "float32").fingerprint()
    assert len({LAYOUT.fingerprint(), *(other.fingerprint() for other in others)}) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_block_view_is_exactly_that_block_of_that_layer(dtype: str) -> None:
    pool = KvPool(KvLayout(3, 2, 4, dtype), 5)
    pool.data.copy_(torch.arange(pool.data.numel()).view(pool.data.shape))
    view = pool.block_view(1, 3)
    expected = pool.data[1, 3].contiguous().view(torch.uint8).numpy().tobytes()
    assert view.nbytes == pool.layout.layer_block_bytes
    assert bytes(view) == expected


def test_bytes_written_to_a_block_view_are_read_by_the_model() -> None:
    source, target = KvPool(LAYOUT, 2), KvPool(LAYOUT, 2)
    source.data.normal_()
    target.block_view(2, 1)[:] = source.block_view(2, 0)
    assert torch.equal(target.data[2, 1], source.data[2, 0])
    assert not target.data[:2].any()


def test_rows_address_keys_then_values_of_a_block() -> None:
    pool = KvPool(LAYOUT, 2)
    pool.data.normal_()
    assert torch.equal(pool.rows[0][32 + 5], pool.data[0, 1, 0, 5].flatten())
    assert torch.equal(pool.rows[0][32 + 16 + 5], pool.data[0, 1, 1, 5].flatten())


def test_the_callers_memory_is_the_storage() -> None:
    with mmap.mmap(-1, 2 * LAYOUT.block_bytes) as memory:
        view = memoryview(memory)
        pool = KvPool(LAYOUT, 2, view)
        pool.data.fill_(1.0)
        assert bytes(view[:4]) == b"\x00\x00\x80\x3f"
        assert pool.memory.nbytes == pool.nbytes == len(memory)
        del pool
        view.release()


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="writable bytes"):
        KvPool(LAYOUT, 2, memoryview(bytearray(2 * LAYOUT.block_bytes + 1)))


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="read-only"):
        KvPool(LAYOUT, 2, memoryview(bytes(2 * LAYOUT.block_bytes)))


@pytest.mark.parametrize(("layer", "block"), [(-1, 0), (3, 0), (0, -1), (0, 2)])
def test_a_block_outside_the_pool_is_refused(layer: int, block: int) -> None:
    with pytest.raises(InvalidRequest, match="outside the pool"):
        KvPool(LAYOUT, 2).block_view(layer, block)
