"""The Triton kernels at served widths and heads: interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from shared.engine.cuda.linear_kernel import InvariantLinear
from shared.engine.cuda.norm_kernel import rms_norm
from tests.support.paged_attention import TOLERANCE, Case, Sequence, Shape
from tests.support.served_shapes import ATTENTION_SHAPES, INPUT_WIDTHS

SEQUENCES = [Sequence(1), Sequence(17), Sequence(300), Sequence(65, num_rows=13)]


@pytest.mark.parametrize("width", INPUT_WIDTHS)
def test_products_are_those_of_torch(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    rows, weight = (torch.randn(count, width, generator=generator) for count in (65, 70))
    product = InvariantLinear(weight, None)(rows)
    right = (rows.double() @ weight.T.double()).float()
    assert (product - right).abs().max() <= 2e-5 * right.abs().max()


@pytest.mark.parametrize("width", INPUT_WIDTHS)
def test_norms_are_those_of_torch(width: int) -> None:
    rows, weight = torch.randn(13, width), torch.randn(width)
    right = functional.rms_norm(rows, (width,), weight, 1e-5)
    torch.testing.assert_close(rms_norm(rows, weight, 1e-5), right, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("heads", ATTENTION_SHAPES, ids=str)
def test_attention_is_that_of_torch(heads: tuple[int, int, int], kv_dtype: str) -> None:
    case = Case(Shape(*heads, kv_dtype=kv_dtype), SEQUENCES)
    for index, out in enumerate(case.run()):
        torch.testing.assert_close(out, case.expected(index), atol=TOLERANCE["float32"], rtol=2e-5)
