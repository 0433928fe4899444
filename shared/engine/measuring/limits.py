"""Measure what this machine can do at most: how fast memory is read and how fast matrices are multiplied.

A benchmark's figures are shares of these, measured beside it, because absolute figures belong to a machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shared.engine.native.library import library

READ_BYTES = 512 << 20  # many times any last-level cache
MATMUL_SIZE = 2048  # large enough that a product is bound by arithmetic
ROUNDS = 8

_MATMUL_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Limits:
    """The best of ROUNDS. `operations_per_s` by dtype; a multiplication and an addition are two."""

    read_bytes_per_s: float
    operations_per_s: dict[str, float]


def measure_limits(threads: int, device: str = "cpu") -> Limits:
    """Takes seconds and READ_BYTES of memory. Sets torch's number of threads."""
    torch.set_num_threads(threads)
    target = torch.device(device)
    return Limits(
        read_bytes_per_s(target, threads),
        {name: matmul_operations_per_s(name, target) for name in _MATMUL_DTYPES},
    )


def read_bytes_per_s(device: torch.device, threads: int) -> float:
    """Bytes read from main memory per second by `threads`; on cuda, bytes copied, both ways."""
    if device.type == "cuda":
        source = torch.ones(READ_BYTES, dtype=torch.uint8, device=device)
        return 2 * READ_BYTES / _best_s(source.clone, device)
    # No way of reading is the fastest on every CPU: reductions of torch and, where it is built, a plain loop.
    buffer = torch.ones(READ_BYTES // 4, dtype=torch.int32)
    ways: list[Callable[[], object]] = [
        buffer.max,
        buffer.view(torch.float32).sum,
        buffer.view(torch.bfloat16).max,
    ]
    kernels = library()
    if kernels is not None:
        ways.append(lambda: kernels.penstock_read(buffer.data_ptr(), buffer.numel(), threads))
    return READ_BYTES / min(_best_s(way, device) for way in ways)


def matmul_operations_per_s(dtype: str, device: torch.device) -> float:
    """Operations per second in a square product; int8 accumulates in int32."""
    shape = (MATMUL_SIZE, MATMUL_SIZE)
    left, right = (
        torch.randint(-8, 8, shape, device=device).to(_MATMUL_DTYPES[dtype]).contiguous() for _ in range(2)
    )
    product = torch._int_mm if dtype == "int8" else torch.mm  # noqa: SLF001 (the only int8 product torch has)
    return 2 * MATMUL_SIZE**3 / _best_s(lambda: product(left, right), device)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of ROUNDS runs, after one that warms up."""
    times: list[float] = []
    for _ in range(1 + ROUNDS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
