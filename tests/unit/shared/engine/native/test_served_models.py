"""Two layers of checkpoints that people serve, at their real widths, against transformers and bit for bit.

The smallest checkpoints, of which Qwen2.5's has rows that are too wide in float32 for one block of them all,
and each choice of heads in one form; `test_served_widths.py` has their widths in every form, and
`make shapes` the whole table.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from shared.engine.native.library import library
from tests.support.engine import oracle, oracle_logits
from tests.support.served_checkpoints import save_served
from tests.support.served_runs import (
    ERRORS,
    STORED_AS,
    ServedRun,
    assert_every_number_of_rows_is_the_same,
    assert_golden,
    row_errors,
    served_engine,
)
from tests.support.served_shapes import ATTENTION_SHAPES, SERVED

SMALLEST = {
    "SmolLM2-135M": ("float32", "bfloat16", "int8", "int4"),
    "Qwen2.5-0.5B": ("float32", "int8"),
    "Gemma-3-270M": ("bfloat16", "int8"),
}
"""The smallest checkpoints of three families, and the forms of their weights: one in each, the others in one
that is computed as it is stored and in one that rounds rows."""
FORMS = [(name, kind) for name, kinds in SMALLEST.items() for kind in kinds]
KV_KINDS = ["float32", "bfloat16", "int8 KV"]
HEADS = list(zip(ATTENTION_SHAPES, itertools.cycle(KV_KINDS), strict=False))
VOCAB = 512  # test_served_widths.py has the real ones
pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)
_exact: dict[str, Tensor] = {}


def exact_logits(name: str, folder: Path, run: ServedRun) -> Tensor:
    """float32 [LONGEST, vocab] of transformers, computed once for all forms of a checkpoint."""
    if name not in _exact:
        _exact[name] = oracle_logits(oracle(folder), run.token_ids)
    return _exact[name]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: save_served(tmp_path_factory.mktemp("served"), SERVED[name].config(vocab=VOCAB))
        for name in SMALLEST
    }


@pytest.mark.thorough(but="SmolLM2-135M-int8 | SmolLM2-135M-bfloat16 | Gemma-3-270M-int8 | SmolLM2-135M-int4")
@pytest.mark.parametrize(("name", "kind"), FORMS)
def test_invariant_5_a_served_checkpoint_is_right_in_every_number_of_rows(
    name: str, kind: str, folders: dict[str, Path]
) -> None:
    folder = folders[name]
    engine = served_engine(folder, backend="native", threads=2, **STORED_AS[kind])
    run = ServedRun.of(engine, VOCAB)
    logits = assert_every_number_of_rows_is_the_same(run)
    assert row_errors(logits, exact_logits(name, folder, run)).max() <= ERRORS[kind]
    assert_golden(f"{name}, {kind}", logits)


@pytest.mark.thorough(
    but="(9, 3, 64)-int8 KV | (4, 1, 256)-float32 | (14, 2, 64)-bfloat16 | (12, 2, 128)-float32 | "
    "(16, 2, 128)-int8 KV | (8, 4, 256)-bfloat16 | (32, 8, 64)-int8 KV | (32, 32, 96)-int8 KV | "
    "(32, 8, 128)-float32 | (40, 8, 128)-bfloat16"
)
@pytest.mark.parametrize(("heads", "kind"), HEADS, ids=str)
def test_invariant_5_served_attention_is_right_in_every_number_of_rows(
    heads: tuple[int, int, int], kind: str, tmp_path: Path
) -> None:
    shape = replace(
        SERVED["Llama-3.1-8B"],
        hidden=8 * heads[0],
        intermediate=64,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
    )
    folder = save_served(tmp_path, shape.config(vocab=VOCAB, layers=1))
    run = ServedRun.of(served_engine(folder, backend="native", **STORED_AS[kind]), VOCAB)
    logits = assert_every_number_of_rows_is_the_same(run)
    name = f"attention of {heads}"
    assert row_errors(logits, exact_logits(name, folder, run)).max() <= ERRORS[kind]
    assert_golden(f"{name}, {kind}", logits)
