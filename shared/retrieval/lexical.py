"""Passages found by the words of a question: BM25 (Robertson and Zaragoza 2009) over the terms of `words`.

The scores of every term in every passage are computed when the index is built (bm25s: Lù 2024,
arXiv:2407.03618), so that a search only adds them up. On disk: numpy's arrays and the terms as JSON, no
pickle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import bm25s
import numpy as np
import numpy.typing as npt

from shared.errors import ChecksumMismatch
from shared.retrieval.words import terms_of

Rows = npt.NDArray[np.int64]
"""Passages by their place in the index; -1 = none."""
Scores = npt.NDArray[np.float32]
Allowed = npt.NDArray[np.bool_]
"""[passages]: whether a passage may be found."""

K1, B = 1.2, 0.75
"""As Lucene has them."""

MAX_POSTINGS = 4_000_000
"""Passages that a question's terms are in, counted for each term: rarest terms first, those beyond are left
out. Bounds the time of a search; a question always has its rarest term."""

TERMS_NAME = "terms.json"
SCORES_NAME = "scores.npy"
POSTINGS_NAME = "postings.npy"
STARTS_NAME = "starts.npy"
LEXICAL_NAMES = (TERMS_NAME, SCORES_NAME, POSTINGS_NAME, STARTS_NAME)


class LexicalIndex:
    """`search` may be called from any thread: nothing changes after it was built."""

    def __init__(
        self,
        terms: dict[str, int],
        scores: Scores,
        postings: npt.NDArray[np.int32],
        starts: Rows,
        passages: int,
    ) -> None:
        """Term t is in the passages postings[starts[t]:starts[t + 1]]; its scores are at the same places."""
        self._terms = terms
        self._starts = starts
        self._passages = passages
        self._bm25 = bm25s.BM25(k1=K1, b=B, backend="numpy")
        self._bm25.scores = {"data": scores, "indices": postings, "indptr": starts, "num_docs": passages}
        self._bm25.nonoccurrence_array = None

    @classmethod
    def build(cls, texts: Sequence[str]) -> Self:
        """Of passages in their order."""
        terms: dict[str, int] = {}
        ids = [[terms.setdefault(term, len(terms)) for term in terms_of(text)] for text in texts]
        if not terms:
            return cls({}, np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64), len(texts))
        bm25 = bm25s.BM25(k1=K1, b=B, backend="numpy")
        bm25.index((ids, terms), create_empty_token=False, show_progress=False)
        columns = bm25.scores
        return cls(terms, columns["data"], columns["indices"], columns["indptr"], len(texts))

    def __len__(self) -> int:
        return self._passages

    def search(self, questions: Sequence[str], k: int, allowed: Allowed | None = None) -> tuple[Scores, Rows]:
        """For each question its best k passages, best first: scores [questions, k], 0 where row [questions,
        k] is -1, which is where no other passage has a term of the question. Equal scores: the earlier
        passage first."""
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

    def _ids_of(self, question: str) -> list[int]:
        """The question's terms that passages have, each as often as it is asked for, within MAX_POSTINGS."""
        ids = [self._terms[term] for term in terms_of(question) if term in self._terms]
        counts = {term: int(self._starts[term + 1] - self._starts[term]) for term in ids}
        ids.sort(key=lambda term: (counts[term], term))
        left = MAX_POSTINGS
        for place, term in enumerate(ids):
            left -= counts[term]
            if left < 0 and place:
                return ids[:place]
        return ids

    def save(self, folder: Path) -> None:
        """Its files, in a folder that exists."""
        columns = self._bm25.scores
        np.save(folder / SCORES_NAME, columns["data"], allow_pickle=False)
        np.save(folder / POSTINGS_NAME, columns["indices"], allow_pickle=False)
        np.save(folder / STARTS_NAME, columns["indptr"], allow_pickle=False)
        (folder / TERMS_NAME).write_text(
            json.dumps({"passages": self._passages, "terms": list(self._terms)}, ensure_ascii=False),
            encoding="utf-8",
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Maps the files, whose checksums the caller has compared. Raises ChecksumMismatch when they do not
        fit each other."""
        try:
            told = json.loads((folder / TERMS_NAME).read_text(encoding="utf-8"))
            terms, passages = {term: place for place, term in enumerate(told["terms"])}, int(told["passages"])
            scores, postings, starts = (
                np.load(folder / name, mmap_mode="r", allow_pickle=False)
                for name in (SCORES_NAME, POSTINGS_NAME, STARTS_NAME)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ChecksumMismatch(f"{folder} has no whole lexical index ({error})") from error
        whole = (
            len(starts) == len(terms) + 1
            and len(scores) == len(postings) == int(starts[-1])
            and (not len(postings) or int(postings.max()) < passages)
        )
        if not whole:
            raise ChecksumMismatch(f"the files of the lexical index in {folder} do not belong together")
        return cls(terms, scores, postings, starts, passages)


def _best_rows(scores: Scores, k: int) -> Rows:
    """Of the passages with a score above 0 the best k, in their order."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        among = scores[found]
        found = found[among >= np.partition(among, len(found) - k)[len(found) - k]]
    order = np.lexsort((found, -scores[found]))[:k]
    best: Rows = found[order]
    return best
