"""Let a simulation stand in for what a seam gives, whoever has taken hold of the seam before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def replaced(seam: object, names: Sequence[str], source: object) -> Iterator[None]:
    """Take these attributes of `seam` from `source` in this block."""
    real = [(name, getattr(seam, name)) for name in names]
    try:
        for name in names:
            setattr(seam, name, getattr(source, name))
        yield
    finally:
        for name, value in real:
            setattr(seam, name, value)
