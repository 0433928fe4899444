"""Matrices are multiplied in the type that the CPU is fast in."""

from __future__ import annotations

import pytest
import torch

from shared.training.precision import fast_products, product_type


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"neon": True, "bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_products_are_made_in_bfloat16_where_the_cpu_multiplies_it(
    capabilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert product_type() is expected
    with fast_products():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is expected
