"""The attention kernel against plain attention over what the pool holds."""

from __future__ import annotations

import pytest
import torch

from shared.engine.cuda.attention_kernel import SPLIT_KEYS, attend_paged
from shared.engine.cuda.paged import PagedRows, paged_kv
from tests.support.paged_attention import TOLERANCE, Case, Sequence, Shape

SHAPES = {
    "grouped heads": Shape(),
    "one head each": Shape(heads=2, kv_heads=2, head_dim=16),
    "one kv head": Shape(heads=5, kv_heads=1, head_dim=8),
    "more heads than a tile": Shape(heads=20, kv_heads=1, head_dim=16),
    "window": Shape(window=50),
    "soft-cap": Shape(softcap=2.0),
    "window and soft-cap": Shape(window=300, softcap=1.5, head_dim=32),
    "bfloat16": Shape(dtype="bfloat16"),
    "int8": Shape(kv_dtype="int8"),
    "fp8": Shape(kv_dtype="fp8"),
    "bfloat16 over int8": Shape(dtype="bfloat16", kv_dtype="int8"),
    "bfloat16 over fp8": Shape(dtype="bfloat16", kv_dtype="fp8"),
}
MIXED = [Sequence(1), Sequence(17), Sequence(SPLIT_KEYS + 40), Sequence(90, num_rows=6), Sequence(SPLIT_KEYS)]


@pytest.mark.thorough(but="one kv head | more heads than a tile | window and soft-cap | bfloat16 over int8")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_row_of_a_mixed_batch_attends_to_its_own_keys(shape: Shape) -> None:
    case = Case(shape, MIXED)
    for index, out in enumerate(case.run()):
        torch.testing.assert_close(
            out.float(), case.expected(index), atol=TOLERANCE[shape.dtype], rtol=TOLERANCE[shape.dtype]
        )


@pytest.mark.thorough(but="window and soft-cap")
@pytest.mark.usefixtures("dot_products_of_one_order")
@pytest.mark.parametrize("name", ["grouped heads", "window and soft-cap", "bfloat16", "bfloat16 over int8"])
def test_a_row_is_bitwise_the_same_alone_and_anywhere_in_a_batch(name: str) -> None:
    sequence = Sequence(SPLIT_KEYS + 40)
    alone = Case(SHAPES[name], [sequence], seed=1).run()[0]
    front = Case(SHAPES[name], [sequence, Sequence(5), Sequence(90, num_rows=3)], seed=2).run()[0]
    back = Case(SHAPES[name], [Sequence(33, num_rows=20), Sequence(7), sequence], seed=3).run()[2]
    assert torch.equal(alone, front)
    assert torch.equal(alone, back)


@pytest.mark.thorough(but="window and soft-cap")
@pytest.mark.usefixtures("dot_products_of_one_order")
@pytest.mark.parametrize("name", ["grouped heads", "window and soft-cap", "bfloat16"])
def test_rows_of_a_prompt_are_bitwise_the_same_in_tiles_and_one_by_one(name: str) -> None:
    case = Case(SHAPES[name], [Sequence(SPLIT_KEYS + 4, num_rows=11)])
    assert torch.equal(case.run()[0], case.run(rows_each=1)[0])


def test_a_padding_row_gives_zeros_and_reads_nothing() -> None:
    case = Case(Shape(), [Sequence(40)])
    rows = PagedRows(
        torch.tensor([-1], dtype=torch.int32),
        torch.tensor([[0, 0, 0]], dtype=torch.int32),
        torch.full((1, 3), 10**6, dtype=torch.int32),
        1,
    )
    assert not attend_paged(case.queries[0], paged_kv(case.pool, 0), rows, 1.0, None, 0.0).any()
