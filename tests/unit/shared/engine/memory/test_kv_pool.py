from __future__ import annotations

import mmap

import numpy as np
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


def test_a_latent_layout_holds_one_vector_for_keys_and_values() -> None:
    latent = KvLayout(3, 1, 8, "int8", latent=True)
    assert 2 * latent.layer_block_bytes == KvLayout(3, 1, 8, "int8").layer_block_bytes
    assert latent.fingerprint() != KvLayout(3, 1, 8, "int8").fingerprint()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_what_is_stored_in_a_latent_layout_is_loaded_as_keys_and_as_values(dtype: str) -> None:
    latent, plain = (KvPool(KvLayout(2, 1, 8, dtype, latent=latent), 4) for latent in (True, False))
    (stored, _), slots = random_kv(5, heads=1, dim=8), torch.tensor([63, 0, 17, 31, 32])
    latent.data.fill_(0x7F)  # what is around a slot does not matter
    latent.store(1, slots, stored, None)
    plain.store(1, slots, stored, stored)
    keys, values = latent.load(1, slots)
    assert torch.equal(keys, plain.load(1, slots)[0])
    assert torch.equal(values, keys)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_a_block_view_is_exactly_that_block_of_that_layer(dtype: str) -> None:
    pool = KvPool(KvLayout(3, 2, 4, dtype), 5)
    pool.data.copy_(torch.arange(pool.data.numel()).view(pool.data.shape) % 251)
    view = pool.block_view(1, 3)
    expected = pool.data[1, 3].numpy().tobytes()
    assert view.nbytes == pool.layout.layer_block_bytes
    assert bytes(view) == expected


def test_bytes_written_to_a_block_view_are_read_by_the_model() -> None:
    source, target = KvPool(LAYOUT, 2), KvPool(LAYOUT, 2)
    source.data.random_()
    target.block_view(2, 1)[:] = source.block_view(2, 0)
    assert torch.equal(target.data[2, 1], source.data[2, 0])
    assert not target.data[:2].any()


def test_the_callers_memory_is_the_storage() -> None:
    with mmap.mmap(-1, 2 * LAYOUT.block_bytes) as memory:
        view = memoryview(memory)
        pool = KvPool(LAYOUT, 2, view)
        pool.keys.fill_(1.0)
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


def random_kv(
    tokens: int, *, heads: int = 2, dim: int = 4, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn((2, tokens, heads, dim), generator=generator)
    return keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_in_the_computed_dtype_is_loaded_exactly(dtype: torch.dtype) -> None:
    pool = KvPool(KvLayout(3, 2, 4, str(dtype).removeprefix("torch.")), 5)
    slots = torch.tensor([70, 3, 16, 15, 79])
    keys, values = (part.to(dtype) for part in random_kv(5))
    pool.store(1, slots, keys, values)
    loaded = pool.load(1, slots.view(1, 5, 1))
    assert loaded[0].shape == (1, 5, 1, 2, 4)
    assert torch.equal(loaded[0].view(5, 2, 4), keys)
    assert torch.equal(loaded[1].view(5, 2, 4), values)
    assert not pool.data[0].any()
    assert not pool.data[2].any()


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.51 / 127), ("fp8", 1 / 16)])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_codes_come_back_within_their_rounding(dtype: str, bound: float, compute: torch.dtype) -> None:
    pool = KvPool(KvLayout(2, 3, 8, dtype), 4, compute_dtype=compute)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:40]
    stored = random_kv(40, heads=3, dim=8)
    pool.store(1, slots, *(part.to(compute) for part in stored))
    rounding = 2**-8 if compute is torch.bfloat16 else 0.0
    for loaded, source in zip(pool.load(1, slots), stored, strict=True):
        assert loaded.dtype is compute
        error = (loaded.float() - source).abs()
        assert (error <= (bound + 2 * rounding) * source.abs().amax(-1, keepdim=True)).all()


def test_each_token_and_head_has_its_own_scale() -> None:
    pool = KvPool(KvLayout(1, 2, 4, "int8"), 1)
    keys = torch.ones(2, 2, 4) * torch.tensor([[1000.0, 0.001], [1.0, 50.0]])[..., None]
    pool.store(0, torch.tensor([0, 1]), keys, keys)
    for loaded in pool.load(0, torch.tensor([0, 1])):
        torch.testing.assert_close(loaded, keys, rtol=6e-3, atol=0)


def test_a_head_of_zeros_stays_zeros_in_int8() -> None:
    pool = KvPool(KvLayout(1, 2, 4, "int8"), 1)
    pool.data.fill_(7)
    zeros = torch.zeros(1, 2, 4)
    pool.store(0, torch.tensor([3]), zeros, zeros)
    assert torch.equal(torch.stack(pool.load(0, torch.tensor([3]))), torch.zeros(2, 1, 2, 4))


def test_int8_bytes_are_codes_of_keys_and_values_then_their_scales() -> None:
    layout = KvLayout(2, 2, 4, "int8")
    pool = KvPool(layout, 3)
    keys, values = random_kv(16)
    pool.store(1, torch.arange(32, 48), keys, values)
    raw = pool.block_view(1, 2)
    assert len(raw) == layout.layer_block_bytes == 2 * 16 * 2 * (4 + 2)
    codes = np.frombuffer(raw[:256], np.int8).reshape(2, 16, 2, 4)
    scales = np.frombuffer(raw[256:], np.float16).reshape(2, 16, 2)
    source = torch.stack((keys, values)).numpy()
    assert np.array_equal(scales, (np.abs(source).max(-1) / 127).astype(np.float16))
    assert np.array_equal(codes, np.rint(source / scales.astype(np.float32)[..., None]).astype(np.int8))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_copied_block_loads_the_same_in_every_layer(dtype: str) -> None:
    pool = KvPool(KvLayout(2, 2, 4, dtype), 3)
    for layer in range(2):
        pool.store(layer, torch.arange(16), *random_kv(16, seed=layer))
    pool.copy_block(0, 2)
    for layer in range(2):
        assert torch.equal(
            torch.stack(pool.load(layer, torch.arange(32, 48))),
            torch.stack(pool.load(layer, torch.arange(16))),
        )


def test_a_memory_budget_becomes_whole_blocks() -> None:
    layout = KvLayout(4, 8, 64, "bfloat16")
    assert layout.blocks_in(3) == (3 << 20) // layout.block_bytes
    with pytest.raises(InvalidRequest, match="kv_memory_mb"):
        KvLayout(64, 64, 256, "float32").blocks_in(1)
