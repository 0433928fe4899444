"""Rows that decode and rows that verify, at real widths over thousands of keys: one order of sums."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from shared.engine.native.library import library
from tests.support.native_attention import attend

PARTITION_KEYS = 2048
"""The most keys that are summed up by themselves (`attention_items.h`)."""
LENGTH = 2 * PARTITION_KEYS + 77
VERIFIED = (2, 4, 5, 8)
"""Rows of a sequence, whose query heads are a tile, or several."""
MANY = 21
QUERY_ROWS = 192
"""The most of a KV head that a call takes (`attention.h`)."""


@pytest.fixture
def kernels() -> Iterator[ctypes.CDLL]:
    loaded = library()
    if loaded is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    had_unit = loaded.penstock_has_matrix_unit()
    loaded.penstock_use_matrix_unit(False)
    yield loaded
    loaded.penstock_use_matrix_unit(had_unit)


def chained(values: Tensor) -> Tensor:
    """Return float32 [...] of [K, ...]: of a pair of keys the later one first."""
    total = torch.zeros_like(values[0])
    for key in range(0, len(values), 2):
        for each in reversed(values[key : key + 2]):
            total = total + each
    return total


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 2, 128), (4, 4, 80)])
@pytest.mark.parametrize("num_rows", [1, 5, MANY])
def test_outputs_are_summed_up_key_by_key(
    kernels: ctypes.CDLL, num_rows: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    """Queries of zeros weigh all keys alike, by exactly 1, in every partition."""
    generator = torch.Generator().manual_seed(head_dim)
    keys_values = torch.randn(2, LENGTH, kv_heads, head_dim, generator=generator).bfloat16()
    out = attend(kernels, keys_values, torch.zeros(num_rows, heads, head_dim), LENGTH - num_rows)
    values = keys_values[1].float()
    whole = chained(values[:PARTITION_KEYS]) + chained(values[PARTITION_KEYS : 2 * PARTITION_KEYS])
    for row in range(num_rows):
        seen = LENGTH - num_rows + row + 1
        means = (whole + chained(values[2 * PARTITION_KEYS : seen])) * (torch.ones(()) / seen)
        expected = means[:, None].expand(kv_heads, heads // kv_heads, head_dim)
        assert torch.equal(out[row], expected.reshape(heads, head_dim)), row


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    int8: bool = False
    window: int = 0
    soft_cap: float = 0.0


CASES = (
    Case(9, 3, 64),
    Case(8, 2, 128),
    Case(32, 8, 128),
    Case(9, 3, 64, int8=True),
    Case(8, 2, 128, int8=True, window=1000),
    Case(4, 4, 80, soft_cap=5.0),
    Case(16, 1, 64, window=70),
    Case(6, 2, 24, int8=True),
)


@pytest.mark.thorough(but="case0 | case1 | case3 | case5")
@pytest.mark.parametrize("case", CASES)
def test_a_row_is_the_same_alone_and_among_others(kernels: ctypes.CDLL, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.head_dim)
    shape = (2, LENGTH, case.kv_heads, case.head_dim)
    if case.int8:
        stored = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        scales = (torch.rand(shape[:-1], generator=generator) / 64).half()
    else:
        stored, scales = torch.randn(shape, generator=generator).bfloat16(), None
    scale = 2 * case.head_dim**-0.5
    queries = torch.randn(MANY, case.heads, case.head_dim, generator=generator) * scale

    def at(start: int, first: int, count: int) -> Tensor:
        end = start + first + count
        return attend(
            kernels,
            stored[:, :end],
            queries[first : first + count],
            start + first,
            window=case.window,
            soft_cap=case.soft_cap,
            scales=None if scales is None else scales[:, :end],
        )

    many = min(MANY, QUERY_ROWS * case.kv_heads // case.heads)
    for start in (PARTITION_KEYS - 2, LENGTH - many):
        alone = torch.cat([at(start, row, 1) for row in range(max(VERIFIED))])
        assert not alone.isnan().any()
        for count in (*VERIFIED, many):
            together = at(start, 0, count)[: max(VERIFIED)]
            assert torch.equal(together, alone[: len(together)]), (start, count)


@pytest.mark.parametrize("num_rows", [1, 5])
def test_rows_are_those_of_exact_attention(kernels: ctypes.CDLL, num_rows: int) -> None:
    """Up to the rounding of weights to bf16."""
    generator = torch.Generator().manual_seed(1)
    keys_values = torch.randn(2, LENGTH, 3, 64, generator=generator).bfloat16()
    queries = (torch.randn(num_rows, 9, 64, generator=generator) / 4).bfloat16().float()
    keys, values = (each.repeat_interleave(3, dim=1).double() for each in keys_values)
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys)
    position = torch.arange(LENGTH - num_rows, LENGTH)[:, None]
    scores = scores.masked_fill(torch.arange(LENGTH) > position, -torch.inf)
    exact = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    out = attend(kernels, keys_values, queries, LENGTH - num_rows)
    assert (out - exact).square().mean().sqrt() <= 4e-3 * exact.square().mean().sqrt()
