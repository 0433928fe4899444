"""Make named tuples from what they consist of, without a call of Python for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

N = TypeVar("N", bound=NamedTuple)


def maker_of(kind: type[N]) -> Callable[[Iterable[Any]], N]:
    """Return what makes a `kind` of all its fields in their order. Nobody checks how many there are."""
    return partial(tuple.__new__, kind)
