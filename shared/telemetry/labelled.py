"""Look up a metric by the values of its labels once, and not each time that it counts something."""

from __future__ import annotations

from functools import cache
from typing import Protocol, Self, TypeVar


class LabelledMetric(Protocol):
    """The part of a metric with labels that is needed here."""

    def labels(self, *values: object) -> Self: ...


M = TypeVar("M", bound=LabelledMetric)


@cache
def labelled(metric: M, *values: str) -> M:
    """Return the series of `metric` that has these values of its labels, in their order.

    The library's own look-up sorts names and takes a lock, which costs more than counting does. What is found
    is kept for good, as the metric keeps it too: not for one whose series are removed again.
    """
    return metric.labels(*values)
