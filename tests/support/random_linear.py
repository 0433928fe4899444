"""Random matrices in each form that the kernels multiply by, and what they should give."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear
from shared.engine.loading.row_numbers import quantize_rows

STORED_IN_FEWER_BITS = {"int8 below 64": range(64), "int8 of levels": (*range(0, 238, 17), 254, 255)}
"""The codes of such matrices have 8 bits, and lie in 6 and 4."""
QUANTIZED = ["int8", "int4", "int8 with minima", "int4 with minima", *STORED_IN_FEWER_BITS]
FORMATS = ["float32", "bfloat16", *QUANTIZED]
ROUNDING = [
    *(["float32"], ["bfloat16"]),
    *(["int8", "int8 with minima", *STORED_IN_FEWER_BITS], ["int4", "int4 with minima"]),
]
"""Those of FORMATS, together where rows are rounded alike."""
ROWS_AT_ONCE = 64
"""The rows whose numbers in double stay in a cache."""


def random_linear(kind: str, out: int, width: int, *, bias: bool = True, group: int = 32) -> Linear:
    generator = torch.Generator().manual_seed(out * 1000 + width)
    added = torch.randn(out, generator=generator) if bias else None
    if kind in ("float32", "bfloat16"):
        weight = torch.randn(out, width, generator=generator)
        return DenseLinear(weight.to(getattr(torch, kind)), added)
    bits = 8 if kind.startswith("int8") else 4
    groups = -(-width // group)
    values = torch.tensor(STORED_IN_FEWER_BITS.get(kind, range(2**bits)), dtype=torch.uint8)
    codes = values[torch.randint(0, len(values), (out, width), generator=generator)]
    zeros = torch.randint(0, 2**bits, (out, groups), dtype=torch.uint8, generator=generator)
    scales = torch.rand(out, groups, generator=generator).half() / 2**bits
    if not kind.endswith("minima"):
        return QuantLinear(codes, scales, zeros, bits, group, added)
    minima = -torch.rand(out, groups, generator=generator).half() / 2
    return QuantLinear(codes, scales, torch.zeros_like(zeros), bits, group, added, minima)


def exact_product(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
    """float32 [T, out], computed in double; rows are rounded before as the matrix' form has it."""
    return exact_products([linear], rows)[0]


def exact_products(linears: Sequence[Linear], rows: torch.Tensor) -> list[torch.Tensor]:
    """The products of several matrices, all of which have the rows rounded alike."""
    weight = torch.cat([_exact(linear) for linear in linears])
    parts = (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
    product = torch.cat([_rounded_rows(linears[0], part) @ weight.T for part in parts])
    products = product.split_with_sizes([linear.shape[0] for linear in linears], dim=1)
    return [
        (each if linear.bias is None else each + linear.bias.double()).float()
        for linear, each in zip(linears, products, strict=True)
    ]


def _exact(linear: Linear) -> torch.Tensor:
    return linear.weight.double() if isinstance(linear, DenseLinear) else exact_weight(_in_groups(linear))


def _rounded_rows(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
    """float64 [T, in]: the numbers that the kernels of this form multiply."""
    if isinstance(linear, DenseLinear):
        return rows.to(linear.weight.dtype).double()
    grouped = _in_groups(linear)
    codes, units = quantize_rows(rows, grouped.bits, grouped.group)
    return codes.double().mul_(_of_columns(units, grouped))


def _in_groups(linear: Linear) -> QuantLinear:
    assert isinstance(linear, QuantLinear), "K-quants are in k_quants.py"
    return linear


def exact_weight(linear: QuantLinear) -> torch.Tensor:
    """float64 [out, in]: what the codes stand for."""
    weight = linear.codes.double().sub_(_of_columns(linear.zeros, linear))
    weight.mul_(_of_columns(linear.scales, linear))
    return weight if linear.minima is None else weight.add_(_of_columns(linear.minima, linear))


def _of_columns(of_groups: torch.Tensor, linear: QuantLinear) -> torch.Tensor:
    """float64 [N, in]: each column has the number of its group."""
    repeated = of_groups.double()[:, :, None].expand(-1, -1, linear.group)
    return repeated.flatten(1)[:, : linear.codes.shape[1]]


def rows_of_any_size(count: int, width: int) -> torch.Tensor:
    """float32 [T, in] from the least numbers to the largest, every third row in halves of a whole
    number; row 5 is zeros, rows 6 and 7 hold what is no finite number."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(count, width, generator=generator)
    rows[::3] = (rows[::3] * 1000).round() / 2
    rows *= torch.pow(2.0, torch.randint(-145, 126, (count, 1), generator=generator))
    rows[5], rows[6, 0], rows[7, -1] = 0.0, torch.inf, torch.nan
    return rows
