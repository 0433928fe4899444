"""The kernels around attention: norms, and queries, keys and values on their way into it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.cuda.norm_kernel import add_rms_norm, rms_norm
from shared.engine.cuda.paged import paged_kv
from shared.engine.cuda.project_kernel import project
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.torch_backend.rope import apply_rope

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 24
EPS = 1e-5
SLOTS = torch.tensor([5, 6, 7, 40, 41, 42, -1])
STORED = SLOTS >= 0
# Triton's interpreter cuts floats off where a GPU rounds them: one step of the format, no more.
STEP = {"float32": 1e-6, "bfloat16": 2**-7}


def normed(rows: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(rows.float(), rows.shape[-1:], weight, EPS).to(rows.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [48, 128])
def test_rms_norm_is_that_of_torch(dtype: str, width: int) -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(5, width).to(TORCH_DTYPES[dtype]), torch.randn(width)
    torch.testing.assert_close(
        rms_norm(rows, weight, EPS), normed(rows, weight), atol=STEP[dtype], rtol=STEP[dtype]
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_add_rms_norm_gives_the_sum_and_its_norm(dtype: str) -> None:
    torch.manual_seed(0)
    hidden, delta = (torch.randn(5, 48).to(TORCH_DTYPES[dtype]) for _ in range(2))
    weight = torch.randn(48)
    total, out = add_rms_norm(hidden, delta, weight, EPS)
    torch.testing.assert_close(total, hidden + delta, atol=STEP[dtype], rtol=STEP[dtype])
    torch.testing.assert_close(out, normed(total, weight), atol=STEP[dtype], rtol=STEP[dtype])


class Projection:
    """One call of the kernel, and the same in torch operations."""

    def __init__(self, dtype: str, kv_dtype: str, *, norms: bool = True, rotary_dim: int = HEAD_DIM) -> None:
        torch.manual_seed(1)
        compute = TORCH_DTYPES[dtype]
        layout = KvLayout(1, KV_HEADS, HEAD_DIM, kv_dtype)
        self.pool, self.expected_pool = (KvPool(layout, 4, compute_dtype=compute) for _ in range(2))
        qkv = torch.randn(len(SLOTS), HEADS + 2 * KV_HEADS, HEAD_DIM).to(compute)
        qkv[3, -1] = 0  # a head of zeros has no scale
        weights = (torch.rand(HEAD_DIM) + 0.5, torch.rand(HEAD_DIM) + 0.5) if norms else None
        positions = torch.arange(len(SLOTS), dtype=torch.int32) + 3
        angles = torch.randn(32, rotary_dim // 2)
        table = torch.cat((angles.cos(), angles.sin()), -1).to(compute) if rotary_dim else None
        kv = paged_kv(self.pool, 0)
        self.queries = project(qkv, HEADS, weights, EPS, table, positions, SLOTS.int(), kv)
        queries, keys, values = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
        if weights is not None:
            queries, keys = normed(queries, weights[0]), normed(keys, weights[1])
        if table is not None:
            rows = table[positions.long()].float()
            queries, keys = (
                torch.cat(
                    (apply_rope(side[..., :rotary_dim].float(), rows).to(compute), side[..., rotary_dim:]), -1
                )
                for side in (queries, keys)
            )
        self.expected_queries = queries
        self.expected_pool.store(0, SLOTS[STORED], keys[STORED], values[STORED])


@pytest.mark.thorough(but="0-no norms | 24-norms")
@pytest.mark.parametrize("norms", [True, False], ids=["norms", "no norms"])
@pytest.mark.parametrize("rotary_dim", [HEAD_DIM, 8, 0])
def test_queries_keys_and_values_are_normed_turned_and_stored(*, norms: bool, rotary_dim: int) -> None:
    case = Projection("float32", "float32", norms=norms, rotary_dim=rotary_dim)
    torch.testing.assert_close(case.queries, case.expected_queries, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(
        case.pool.data.view(torch.float32), case.expected_pool.data.view(torch.float32), atol=2e-6, rtol=2e-6
    )


def test_bfloat16_differs_by_a_rounding_at_most() -> None:
    case = Projection("bfloat16", "bfloat16")
    torch.testing.assert_close(case.queries, case.expected_queries, atol=2**-6, rtol=2**-6)
    stored, expected = (pool.data.view(torch.bfloat16) for pool in (case.pool, case.expected_pool))
    torch.testing.assert_close(stored, expected, atol=2**-6, rtol=2**-6)


def test_int8_codes_and_scales_are_bytes_that_the_pool_would_write() -> None:
    case = Projection("float32", "int8", norms=False, rotary_dim=0)
    assert torch.equal(case.pool.data, case.expected_pool.data)


def test_fp8_codes_are_bytes_that_the_pool_would_write() -> None:
    """Values that the format holds exactly: Triton's interpreter rounds to fp8 unlike a GPU."""
    torch.manual_seed(2)
    qkv = torch.randn(len(SLOTS), HEADS + 2 * KV_HEADS, HEAD_DIM).mul(40).to(torch.float8_e4m3fn).float()
    qkv[..., 0] = 448.0  # the largest code: the scale is one
    qkv[3, -1] = 0
    layout = KvLayout(1, KV_HEADS, HEAD_DIM, "fp8")
    pool, expected = KvPool(layout, 4), KvPool(layout, 4)
    project(qkv, HEADS, None, EPS, None, SLOTS.int(), SLOTS.int(), paged_kv(pool, 0))
    stored = qkv[STORED]
    expected.store(0, SLOTS[STORED], stored[:, HEADS:-KV_HEADS], stored[:, -KV_HEADS:])
    assert torch.equal(pool.data, expected.data)


def test_a_row_without_a_slot_stores_nothing() -> None:
    case = Projection("float32", "float32")
    touched = case.pool.keys[0].abs().sum((2, 3)).flatten().nonzero().flatten()
    assert touched.tolist() == SLOTS[STORED].tolist()
