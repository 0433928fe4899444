"""Reports of a retriever about the corpora that it searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class CorpusReport:
    """`generation` numbers the index that is searched, of `passages`; both are 0 where there is none.
    `trouble` says why there is none, or none newer; "" = nothing is wrong."""

    name: str
    passages: int
    generation: int
    trouble: str = ""
