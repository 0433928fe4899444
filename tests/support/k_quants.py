"""GGUF's K-quants with random codes, and what their products should give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.loading.gguf.blocks import BLOCK_TYPES, read_blocks
from shared.engine.loading.linear import fuse
from shared.engine.loading.row_numbers import SUPER_COLUMNS, quantize_rows, super_numbers
from shared.engine.loading.superblocks import SuperblockLinear

K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""The places at which a block's float16 numbers begin."""
BITS_OF_FILE = {"Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625}
"""The bits that a weight takes in a file."""
NIBBLE_GROUP = 32


def stored_k_quants(type_name: str, out: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """[out, bytes of `width` weights]: any bits as codes and steps, and scales as weights have them."""
    random = np.random.default_rng(seed)
    kind = BLOCK_TYPES[type_name]
    blocks = random.integers(0, 256, (out * width // SUPER_COLUMNS, kind.num_bytes), dtype=np.uint8)
    for place in HALVES[type_name]:
        drawn = random.normal(0, 1e-4, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = drawn[:, None].view(np.uint8)
    return blocks.reshape(out, -1)


def random_k_quants(types: Sequence[tuple[str, int]], width: int, *, bias: bool = False) -> SuperblockLinear:
    """A matrix whose outputs are of these types, so many of each."""
    parts = [
        read_blocks(torch.from_numpy(stored_k_quants(type_name, out, width, seed)), type_name, "weight")
        for seed, (type_name, out) in enumerate(types)
    ]
    whole = fuse(parts, torch.float32)
    assert isinstance(whole, SuperblockLinear)
    if not bias:
        return whole
    added = torch.randn(whole.shape[0], generator=torch.Generator().manual_seed(width))
    return SuperblockLinear(
        whole.codes, whole.steps, whole.least, whole.scales, whole.minima, whole.bits, added
    )


def exact_k_quant_product(linear: SuperblockLinear, rows: Tensor) -> Tensor:
    """float64 [T, out]: dequantized weights times the numbers that rows are rounded to."""
    product = torch.empty((len(rows), linear.shape[0]), dtype=torch.float64)
    weights = linear.weights(torch.float64)
    for four, (numbers, units), columns in (
        (True, quantize_rows(rows, 4, NIBBLE_GROUP), NIBBLE_GROUP),
        (False, super_numbers(rows), SUPER_COLUMNS),
    ):
        outputs = (linear.bits == 4) == four
        rounded = numbers.double() * units.double().repeat_interleave(columns, 1)
        product[:, outputs] = rounded @ weights[outputs].T
    return product if linear.bias is None else product + linear.bias.double()
