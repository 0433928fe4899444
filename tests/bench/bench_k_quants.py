"""Measure what K-quants cost as superblocks and as the same codes in groups: bits, and CPU time of products.

    python -m tests.bench.bench_k_quants [--out 4096] [--width 4096] [--turns 15] [--rows 1,4,8,64]

One thread, both in turns, medians of CPU time. Groups are what K-quants were held in before superblocks, and
are held in still where they meet codes of other types.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import torch

from shared.engine.loading.linear import in_groups
from shared.engine.native.library import library, native_name
from shared.engine.native.linear import NativeLinear
from tests.support.k_quants import K_QUANTS, random_k_quants

MATRICES = {**{name: ((name, 6),) for name in K_QUANTS}, "Q4_K, Q6_K": (("Q4_K", 5), ("Q6_K", 1))}
"""Sixths of the outputs; the last one is what queries, keys and values of a Q4_K_M file are."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("out", 4096), ("width", 4096), ("turns", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rows", default="1,4,8,64")
    chosen = parser.parse_args()
    kernels = library()
    if kernels is None:
        raise SystemExit("the kernels were not built, or this CPU cannot run them")
    torch.set_num_threads(1)
    print(f"{native_name()}, {chosen.out} x {chosen.width}, load {os.getloadavg()[0]:.1f}")
    print("| type | bits, groups -> superblocks | rows | us, groups -> superblocks | times as fast |")
    print("|---|---|---|---|---|")
    sixth = chosen.out // 6 // 32 * 32
    for name, parts in MATRICES.items():
        linear = random_k_quants([(type_name, sixths * sixth) for type_name, sixths in parts], chosen.width)
        forms = [NativeLinear.pack(kernels, each) for each in (in_groups(linear), linear)]
        bits = [form.nbytes * 8 / linear.codes.numel() for form in forms]
        for num_rows in map(int, chosen.rows.split(",")):
            before, now = _times_us(forms, torch.randn(num_rows, chosen.width), chosen.turns)
            print(
                f"| {name} | {bits[0]:.2f} -> {bits[1]:.2f} | {num_rows} | {median(before):.0f} -> "
                f"{median(now):.0f} | {median(a / b for a, b in zip(before, now, strict=True)):.2f} |"
            )


def _times_us(forms: list[NativeLinear], rows: torch.Tensor, turns: int) -> list[list[float]]:
    times_us: list[list[float]] = [[] for _ in forms]
    for _ in range(turns):
        for form, taken_us in zip(forms, times_us, strict=True):
            start_s = time.thread_time()
            form(rows)
            taken_us.append((time.thread_time() - start_s) * 1e6)
    return times_us


if __name__ == "__main__":
    main()
