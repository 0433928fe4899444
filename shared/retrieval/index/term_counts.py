"""Count how often each term is in each passage: what the scores of a lexical index are made of, and what of
it
stays when passages come and go.

Passages that stay are not read again: their counts move to the rows that they have now. The outcome is the
same to the last byte as if all had been counted anew, because terms stand in the order of their letters and a
term's passages in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.retrieval.index.words import runs_of, terms_of_run

Rows = npt.NDArray[np.int64]
"""Passages by their place in the index; -1 = none."""
Postings = npt.NDArray[np.int32]
"""[postings]: passages of one term after those of another, ascending within each."""
Counts = npt.NDArray[np.uint8]
"""[postings]"""

COUNT_BITS = 8
MAX_COUNT = (1 << COUNT_BITS) - 1
"""The count of a word that is in a passage more often: the score of a term hardly grows any more long
before."""
COUNTED_TOGETHER = 4096
"""Passages whose words are remembered while they are counted."""


@dataclass(frozen=True, slots=True)
class TermCounts:
    """Term t is in the passages postings[starts[t]:starts[t + 1]], in each at least once; `counts` of it
    stand at the same places. `starts`: int64 [terms + 1]."""

    terms: tuple[str, ...]
    starts: Rows
    postings: Postings
    counts: Counts
    passages: int

    @classmethod
    def of_texts(cls, texts: list[str]) -> Self:
        """Count the terms of passages, in their order."""
        none = cls((), np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8), 0)
        return none.updated(np.full(len(texts), -1, np.int64), texts)

    def updated(self, origin: Rows, texts: Iterable[str]) -> Self:
        """Return those of passages of which row r is what row origin[r] is here, which no two are, or where
        that is
        -1 the next of `texts`."""
        ids = {term: number for number, term in enumerate(self.terms)}
        new_rows = np.flatnonzero(origin < 0)
        parts = [self._moved(origin), *_counted(texts, new_rows, ids)]
        term, row, count = (np.concatenate(column) for column in zip(*parts, strict=True))
        names = list(ids)
        number_of = np.bincount(term, minlength=len(names))
        used = sorted(np.flatnonzero(number_of).tolist(), key=names.__getitem__)
        place = np.zeros(len(names), np.int64)
        place[used] = np.arange(len(used))
        starts = np.zeros(len(used) + 1, np.int64)
        np.cumsum(number_of[used], out=starts[1:])
        in_order = bool((np.diff(origin[origin >= 0]) > 0).all()) and len(new_rows) < len(origin) // 2
        packed = _packed(place, term, row, count, len(origin))
        packed.sort(
            kind="stable" if in_order else None
        )  # which is faster where nearly all is in order already
        postings, counts = _unpacked(packed, len(origin))
        return type(self)(tuple(names[number] for number in used), starts, postings, counts, len(origin))

    def _moved(self, origin: Rows) -> tuple[Postings, Postings, Counts]:
        """(terms, rows, counts) [postings that stay], rows as they are now."""
        now = np.full(self.passages, -1, np.int32)
        kept = np.flatnonzero(origin >= 0)
        now[origin[kept]] = kept
        rows = now[self.postings]
        stays = rows >= 0
        terms = np.repeat(np.arange(len(self.terms), dtype=np.int32), np.diff(self.starts))
        return terms[stays], rows[stays], self.counts[stays]


def _packed(place: Rows, term: Postings, row: Postings, count: Counts, passages: int) -> Rows:
    """One number each, by which they are sorted by the place of the term, then by row: many times faster than
    by two keys."""
    packed: Rows = (place << passages.bit_length() + COUNT_BITS)[term]
    packed |= row.astype(np.int64) << COUNT_BITS
    packed |= count
    return packed


def _unpacked(packed: Rows, passages: int) -> tuple[Postings, Counts]:
    rows = (packed >> COUNT_BITS).astype(np.int32)
    rows &= (1 << passages.bit_length()) - 1
    return rows, packed.astype(np.uint8)


def _counted(
    texts: Iterable[str], rows: Rows, ids: dict[str, int]
) -> Iterator[tuple[Postings, Postings, Counts]]:
    """(terms, rows, counts) of the texts, which are these rows. New terms are added to `ids`. Words are few
    beside their occurrences: each is taken apart once."""
    left = iter(texts)
    for begin in range(0, len(rows), COUNTED_TOGETHER):
        words: dict[str, int] = {}
        of_texts: list[int] = []
        lengths: list[int] = []
        for text in islice(left, COUNTED_TOGETHER):
            runs = runs_of(text)
            of_texts += [words.setdefault(run, len(words)) for run in runs]
            lengths.append(len(runs))
        terms = [[ids.setdefault(term, len(ids)) for term in terms_of_run(word)] for word in words]
        yield _occurrences(np.array(of_texts, np.int64), np.array(lengths), terms, rows[begin:])


def _occurrences(
    words: Rows, lengths: npt.NDArray[np.int64], terms: list[list[int]], rows: Rows
) -> tuple[Postings, Postings, Counts]:
    """`words` [sum of lengths] of texts with so many each; `terms` of each word; `rows` that the texts
    are."""
    sizes = np.array([len(of_word) for of_word in terms], np.int64)
    flat = np.fromiter((term for of_word in terms for term in of_word), np.int64, int(sizes.sum()))
    begins = np.cumsum(sizes) - sizes
    repeated = sizes[words]
    offsets = np.arange(int(repeated.sum())) - np.repeat(np.cumsum(repeated) - repeated, repeated)
    term = flat[np.repeat(begins[words], repeated) + offsets]
    text = np.repeat(np.repeat(np.arange(len(lengths)), lengths), repeated)
    packed, count = np.unique(term * len(lengths) + text, return_counts=True)
    term, text = np.divmod(packed, max(1, len(lengths)))
    return term.astype(np.int32), rows[text].astype(np.int32), np.minimum(count, MAX_COUNT).astype(np.uint8)
