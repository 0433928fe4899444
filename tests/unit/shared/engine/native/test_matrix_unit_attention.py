"""Attention on the matrix unit: sums in the order that is stated, the same bits in any number of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from shared.engine.native.library import has_matrix_unit, library
from tests.support.native_attention import attend

STEP = 32
"""Dims of a score, or keys of an output, that one instruction adds up."""
TOGETHER = 40
"""Rows whose keys are packed; those of a single row are read as they are stored."""


@pytest.fixture
def kernels() -> Iterator[ctypes.CDLL]:
    loaded = library()
    if loaded is None or not has_matrix_unit():
        pytest.skip("this CPU has no matrix unit")
    yield loaded
    loaded.penstock_use_matrix_unit(True)


def stated_sum(products: Tensor) -> Tensor:
    """Return float32 [..., N] of exact products [..., K, N] in the order that attention_tiles.h states."""
    products = torch.nn.functional.pad(products, (0, 0, 0, -products.shape[-2] % STEP))
    total = torch.zeros_like(products[..., 0, :])
    for start in range(0, products.shape[-2], STEP):
        even, odd = torch.zeros_like(total), torch.zeros_like(total)
        for each in range(start, start + STEP, 2):
            even += products[..., each, :]
            odd += products[..., each + 1, :]
        total += even + odd
    return total


def in_three_parts(number: Tensor) -> list[Tensor]:
    """Return three bf16 whose sum is a float32 exactly, in whatever order."""
    parts = []
    for _ in range(3):
        parts.append(number.bfloat16())
        number = number - parts[-1].float()
    assert number == 0
    return parts


@pytest.mark.parametrize("num_rows", [1, TOGETHER])
def test_outputs_are_summed_up_in_the_order_that_is_stated(kernels: ctypes.CDLL, num_rows: int) -> None:
    """Queries of zeros weigh all keys alike, by exactly 1."""
    length = 200
    keys_values = torch.randn(2, length, 2, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = attend(kernels, keys_values, torch.zeros(num_rows, 6, 64), length - num_rows)
    for row in range(num_rows):
        seen = length - num_rows + row + 1
        means = stated_sum(keys_values[1, :seen].float().flatten(1)) * (torch.ones(()) / seen)
        assert torch.equal(out[row].view(2, 3, 64), means.view(2, 1, 64).expand(2, 3, 64)), row


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("num_rows", [1, TOGETHER])
def test_scores_are_summed_up_in_the_order_that_is_stated(
    kernels: ctypes.CDLL, num_rows: int, head_dim: int
) -> None:
    """The first key's score is a sum of many products, that of all others the same number in three parts.

    They weigh alike, by exactly 1, where the sum is the one that is stated.
    """
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        query, key = (100 * torch.randn(2, head_dim, generator=generator)).bfloat16()
        query[:3], key[:3] = 1, 0
        score = stated_sum((query.float() * key.float())[:, None])[0]
        keys_values = torch.randn(2, TOGETHER, 1, head_dim, generator=generator).bfloat16()
        keys_values[0] = 0
        keys_values[0, 0, 0] = key
        keys_values[0, 1:, 0, :3] = torch.stack(in_three_parts(score))
        out = attend(kernels, keys_values, query.float().expand(num_rows, 1, -1), TOGETHER - num_rows)
        means = stated_sum(keys_values[1, :, 0].float()) * (torch.ones(()) / TOGETHER)
        assert torch.equal(out[-1, 0], means), seed


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(4, 4, 64, 0), (6, 2, 24, 0), (8, 2, 80, 0), (16, 1, 128, 70), (32, 1, 64, 0), (9, 3, 256, 65)],
)
def test_a_row_of_attention_is_the_same_among_others(
    kernels: ctypes.CDLL, heads: int, kv_heads: int, head_dim: int, window: int
) -> None:
    generator = torch.Generator().manual_seed(heads)
    length, group = 150, heads // kv_heads
    keys_values = torch.randn(2, length, kv_heads, head_dim, generator=generator).bfloat16()
    queries = torch.randn(length, heads, head_dim, generator=generator) * 2 * head_dim**-0.5
    alone = torch.cat(
        [
            attend(kernels, keys_values[:, : at + 1], queries[at, None], at, window=window, soft_cap=3.0)
            for at in range(length)
        ]
    )
    for num_rows in (2, 16 // group + 1, 48 // group):
        for start in (0, 63, length - num_rows):
            rows = attend(
                kernels,
                keys_values[:, : start + num_rows],
                queries[start : start + num_rows],
                start,
                window=window,
                soft_cap=3.0,
            )
            assert torch.equal(rows, alone[start : start + num_rows]), (num_rows, start)


def test_it_is_as_near_to_exact_attention_as_vectors_are(kernels: ctypes.CDLL) -> None:
    generator = torch.Generator().manual_seed(1)
    keys_values = torch.randn(2, 500, 1, 64, generator=generator).bfloat16()
    queries = (torch.randn(TOGETHER, 4, 64, generator=generator) / 4).bfloat16().float()
    scores = torch.einsum("qhd,kd->qhk", queries.double(), keys_values[0, :, 0].double())
    position = torch.arange(500 - TOGETHER, 500)[:, None]
    scores = scores.masked_fill((torch.arange(500) > position)[:, None], -torch.inf)
    exact = scores.softmax(-1) @ keys_values[1, :, 0].double()
    errors = []
    for wanted in (True, False):
        kernels.penstock_use_matrix_unit(wanted)
        out = attend(kernels, keys_values, queries, 500 - TOGETHER)
        errors.append((out - exact).square().mean().sqrt())
    assert errors[0] <= 1.01 * errors[1] <= 2e-3
