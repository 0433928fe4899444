"""Passages found by the words of a question: BM25 (Robertson and Zaragoza 2009) over the terms of `words`.

The scores of every term in every passage are computed when the index is built (Lù 2024, arXiv:2407.03618), so
that a search only adds them up, which bm25s does. On disk: numpy's arrays and the terms as JSON, no pickle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch
from shared.import_without import import_without
from shared.retrieval.index.array_file import mapped_array
from shared.retrieval.index.term_counts import Rows, TermCounts
from shared.retrieval.index.words import terms_of

import_without("scipy", "bm25s")  # it builds indices, which is done here: half of what search imports
import bm25s  # noqa: E402

Scores = npt.NDArray[np.float32]
Allowed = npt.NDArray[np.bool_]
"""[passages]: whether a passage may be found."""

K1, B = 1.2, 0.75
"""Lucene has the same values."""

MAX_PLACES = 1 << 31
"""The passages of an index are fewer: postings name them by numbers of 32 bits."""
MAX_POSTINGS = 4_000_000
"""Passages that a question's terms are in, counted for each term: rarest terms first, those beyond are left
out. Bounds the time of a search; a question always has its rarest term."""

SCORED_TOGETHER = 1 << 20
"""Postings."""

TERMS_NAME = "terms.json"
SCORES_NAME = "scores.npy"
POSTINGS_NAME = "postings.npy"
COUNTS_NAME = "counts.npy"
STARTS_NAME = "starts.npy"
LEXICAL_NAMES = (TERMS_NAME, SCORES_NAME, POSTINGS_NAME, COUNTS_NAME, STARTS_NAME)


class LexicalIndex:
    """`search` may be called from any thread: nothing changes after it was built."""

    def __init__(self, counts: TermCounts, scores: Scores) -> None:
        """`scores` [postings] of the counts' terms and passages."""
        self._counts = counts
        self._bm25 = bm25s.BM25(k1=K1, b=B, backend="numpy")
        self._bm25.scores = {
            "data": scores,
            "indices": counts.postings,
            "indptr": counts.starts,
            "num_docs": counts.passages,
        }
        self._bm25.nonoccurrence_array = None

    @cached_property
    def _terms(self) -> dict[str, int]:
        return {term: place for place, term in enumerate(self._counts.terms)}

    @classmethod
    def build(cls, texts: list[str]) -> Self:
        """Build the index of passages, in their order."""
        return cls._of_counts(TermCounts.of_texts(texts))

    def updated(self, origin: Rows, texts: Iterable[str]) -> Self:
        """Return the index of other passages: row r of them is row origin[r] here (no two are the same), or
        where that is -1 the next of `texts`: only these are read. Equal to what `build` makes of all."""
        return self._of_counts(self._counts.updated(origin, texts))

    @classmethod
    def _of_counts(cls, counts: TermCounts) -> Self:
        return cls(counts, _scores(counts))

    def __len__(self) -> int:
        return self._counts.passages

    def search(self, questions: Sequence[str], k: int, allowed: Allowed | None = None) -> tuple[Scores, Rows]:
        """Find for each question its best k passages, best first: scores [questions, k], 0 where row
        [questions, k] is -1, which is where no other passage has a term of the question. Equal scores: the
        earlier passage first."""
        scores = np.zeros((len(questions), k), np.float32)
        rows = np.full((len(questions), k), -1, np.int64)
        for place, question in enumerate(questions):
            ids = self._ids_of(question)
            if not ids:
                continue
            of_all = self._bm25.get_scores_from_ids(ids)
            if allowed is not None:
                of_all *= allowed
            best = _best_rows(of_all, k)
            rows[place, : len(best)] = best
            scores[place, : len(best)] = of_all[best]
        return scores, rows

    def most_score(self, question: str) -> float:
        """Return what no passage's score exceeds: that of one which had the question's terms again and
        again, and nothing else."""
        starts = self._counts.starts
        return sum(self._rarity(int(starts[term + 1] - starts[term])) for term in self._ids_of(question))

    def word_shares(self, question: str, rows: Sequence[int]) -> list[float]:
        """Return the share of the question's terms, by their rarity, that each of these passages has. How
        often it has a term does not matter, other than for its score: a passage that has all of them once is
        often better than one that has the rarest again and again."""
        ids = sorted(set(self._ids_of(question)))
        asked, shares, total = np.asarray(rows, np.int64), np.zeros(len(rows)), 0.0
        for term in ids:
            found_in = self._counts.postings[
                int(self._counts.starts[term]) : int(self._counts.starts[term + 1])
            ]
            places = np.minimum(np.searchsorted(found_in, asked), len(found_in) - 1)
            total += (weight := self._rarity(len(found_in)))
            shares += weight * (found_in[places] == asked)
        told: list[float] = (shares / total if total else shares).tolist()
        return told

    def _rarity(self, found_in: int) -> float:
        return math.log1p((self._counts.passages - found_in + 0.5) / (found_in + 0.5))

    def _ids_of(self, question: str) -> list[int]:
        """The question's terms that passages have, each as often as it is asked for, within MAX_POSTINGS."""
        ids = [self._terms[term] for term in terms_of(question) if term in self._terms]
        starts = self._counts.starts
        counts = {term: int(starts[term + 1] - starts[term]) for term in ids}
        ids.sort(key=lambda term: (counts[term], term))
        left = MAX_POSTINGS
        for place, term in enumerate(ids):
            left -= counts[term]
            if left < 0 and place:
                return ids[:place]
        return ids

    def save(self, folder: Path) -> None:
        """Its files, in a folder that exists."""
        counts = self._counts
        np.save(folder / SCORES_NAME, self._bm25.scores["data"], allow_pickle=False)
        np.save(folder / POSTINGS_NAME, counts.postings, allow_pickle=False)
        np.save(folder / COUNTS_NAME, counts.counts, allow_pickle=False)
        np.save(folder / STARTS_NAME, counts.starts, allow_pickle=False)
        (folder / TERMS_NAME).write_text(
            json.dumps({"passages": counts.passages, "terms": counts.terms}, ensure_ascii=False),
            encoding="utf-8",
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Maps the files, whose checksums the caller has compared. Raises ChecksumMismatch when they do not
        fit each other."""
        try:
            told = json.loads((folder / TERMS_NAME).read_text(encoding="utf-8"))
            terms, passages = tuple(told["terms"]), int(told["passages"])
            scores, postings, counts, starts = (
                mapped_array(folder / name) for name in (SCORES_NAME, POSTINGS_NAME, COUNTS_NAME, STARTS_NAME)
            )
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            raise ChecksumMismatch(f"{folder} has no whole lexical index ({error})") from error
        whole = (
            0 <= passages < MAX_PLACES
            and all(isinstance(term, str) for term in terms)
            and all(each.ndim == 1 for each in (scores, postings, counts, starts))
            and all(each.dtype.kind in "iu" for each in (postings, counts, starts))
            and len(starts) == len(terms) + 1
            and int(starts[0]) == 0
            and bool((starts[1:] >= starts[:-1]).all())
            and len(scores) == len(postings) == len(counts) == int(starts[-1])
            and (not len(postings) or 0 <= int(postings.min()) <= int(postings.max()) < passages)
        )
        if not whole:
            raise ChecksumMismatch(f"the files of the lexical index in {folder} do not belong together")
        return cls(TermCounts(terms, starts, postings, counts, passages), scores)


def _scores(counts: TermCounts) -> Scores:
    """[postings], as Lucene computes them."""
    scores = np.empty(len(counts.postings), np.float32)
    lengths = np.zeros(counts.passages, np.int64)
    for begin in range(0, len(scores), SCORED_TOGETHER):
        part = slice(begin, begin + SCORED_TOGETHER)
        lengths += np.bincount(counts.postings[part], counts.counts[part], counts.passages).astype(np.int64)
    average = (int(lengths.sum()) or 1) / max(1, counts.passages)
    norms = (K1 * (1 - B + B * lengths / average)).astype(np.float32)
    found_in = np.diff(counts.starts)
    weights = np.log1p((counts.passages - found_in + 0.5) / (found_in + 0.5)).astype(np.float32)
    for begin in range(0, len(scores), SCORED_TOGETHER):
        end = min(begin + SCORED_TOGETHER, len(scores))
        within: Rows = np.clip(counts.starts, begin, end)
        weight = np.repeat(weights, np.diff(within))
        count = counts.counts[begin:end].astype(np.float32)
        scores[begin:end] = weight * count / (count + norms[counts.postings[begin:end]])
    return scores


def _best_rows(scores: Scores, k: int) -> Rows:
    """Return the best k of the passages with a score above 0, in their order."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        among = scores[found]
        found = found[among >= np.partition(among, len(found) - k)[len(found) - k]]
    order = np.lexsort((found, -scores[found]))[:k]
    best: Rows = found[order]
    return best


__all__ = ["Allowed", "LexicalIndex", "Rows", "Scores"]
