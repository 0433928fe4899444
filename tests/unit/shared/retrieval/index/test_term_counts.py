from __future__ import annotations

import numpy as np
import pytest

from shared.retrieval.index import term_counts
from shared.retrieval.index.term_counts import MAX_COUNT, TermCounts

TEXTS = ["the gate of the dam", "the soup of the day", "a gate, another gate", "", "水門の鍵", "the the the"]


def told(counts: TermCounts) -> tuple[object, ...]:
    """Everything, to be compared."""
    return (
        counts.terms,
        counts.starts.tolist(),
        counts.postings.tolist(),
        counts.counts.tolist(),
        counts.passages,
    )


def test_a_term_is_counted_in_each_passage_that_has_it() -> None:
    counts = TermCounts.of_texts(TEXTS)
    place = counts.terms.index("the")
    among = slice(counts.starts[place], counts.starts[place + 1])
    assert counts.postings[among].tolist() == [0, 1, 5]
    assert counts.counts[among].tolist() == [2, 2, 3]
    assert counts.terms == tuple(sorted(counts.terms))


@pytest.mark.parametrize(
    "origin",
    [
        [0, 1, 2, 3, 4, 5],
        [5, 4, 3, 2, 1, 0],
        [-1, 1, -1, 3],
        [1, 2],
        [3, -1],
        [-1, -1, 0, -1, 5],
        [],
        [-1],
    ],
)
def test_what_stays_moved_and_comes_is_as_if_all_were_counted(origin: list[int]) -> None:
    coming = [f"new gate number {number}" for number in range(origin.count(-1))]
    left = iter(coming)
    texts = [next(left) if row < 0 else TEXTS[row] for row in origin]
    updated = TermCounts.of_texts(TEXTS).updated(np.array(origin, np.int64), coming)
    assert told(updated) == told(TermCounts.of_texts(texts))


def test_passages_are_counted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = told(TermCounts.of_texts(TEXTS))
    monkeypatch.setattr(term_counts, "COUNTED_TOGETHER", 2)
    assert told(TermCounts.of_texts(TEXTS)) == together


@pytest.mark.parametrize(("times", "counted"), [(MAX_COUNT, MAX_COUNT), (MAX_COUNT + 1, MAX_COUNT)])
def test_a_term_is_counted_so_often_and_no_more(times: int, counted: int) -> None:
    counts = TermCounts.of_texts(["a b " + "a " * (times - 1)])
    assert dict(zip(counts.terms, counts.counts.tolist(), strict=True)) == {"a": counted, "b": 1}
