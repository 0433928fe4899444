"""A planted fault: one change of the product's source that breaks a promise of a protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`right` stands once in the source of `module`, inside of a function, and becomes `wrong`."""

    name: str
    module: str
    right: str
    wrong: str
