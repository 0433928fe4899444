"""Kernels that Triton interprets: what the interpreter leaves to the machine's BLAS is stated here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton.runtime import interpreter

from shared.engine.cuda.launch import INTERPRETED


@pytest.fixture
def dot_products_of_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of bits: a row of `tl.dot` has the same wherever it stands in its tile.

    Tensor cores give that. The interpreter calls BLAS, whose kernels for some CPUs sum the last rows of a
    matrix in another order than the first ones: whether our kernels are exact would depend on the machine.
    """
    if INTERPRETED:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", ordered_dot)


def ordered_dot(
    _builder: Any, left: Any, right: Any, sums: Any, input_precision: Any, max_num_imprecise_acc: Any
) -> Any:
    """sums + left [M, K] @ right [K, N], product after product along K; operands are float32."""
    assert left.data.dtype == right.data.dtype == sums.data.dtype == np.float32
    products = left.data[:, :, None] * right.data  # [M, K, N]; summed along K one row of N after another
    return interpreter.TensorHandle(products.sum(axis=1) + sums.data, sums.dtype.scalar)
