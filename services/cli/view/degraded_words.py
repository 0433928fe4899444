"""Say in words what an answer or a search went without."""

from __future__ import annotations

_WORDS = {
    "retrieval": "no passages, as no retriever answered in time; `penstock status` shows whether one runs",
    "retrieval depth": "fewer passages than asked for, as the stack is busy",
    "dense search": "passages found by their words alone, for want of time",
    "rerank": "passages in the order in which they were found, for want of time",
    "no corpus": "no passages, as nothing is indexed",
}


def degraded_words(degraded: str) -> str:
    """`degraded` is a word of the contract; one of a newer gateway stays as it is."""
    return _WORDS.get(degraded, degraded)
