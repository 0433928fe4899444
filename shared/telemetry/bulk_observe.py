"""Add many observations to a histogram at once."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Histogram


def observe_many(histogram: Histogram, counts: Sequence[int], total: float) -> None:
    """Observe `counts` values in the buckets, in their order, which are `total` together; the histogram has
    no labels. The library itself adds them one by one."""
    histogram._sum.inc(total)  # noqa: SLF001 - as its own `observe` does
    for bucket, count in zip(histogram._buckets, counts, strict=True):  # noqa: SLF001
        if count:
            bucket.inc(count)
