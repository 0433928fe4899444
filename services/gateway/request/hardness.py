"""The classifier's estimate of how hard a question is, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardness:
    """`probability` is from 0 to 1, None where nobody could tell: then `note` says why. It took `took_us`."""

    probability: float | None
    note: str = ""
    took_us: int = 0
