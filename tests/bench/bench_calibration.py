"""How far the scores of passages are from how often passages with such scores answer their question.

    python -m tests.bench.bench_calibration --xquad DIR [--learn DIR …] [--beir DIR …] [--fit]

The sets in BEIR's form after `--learn`, and the first half of XQuAD's English and German questions, are what
is learned from (`--fit` prints it); the second half, the documentation and those after `--beir` are not
looked at for that. Each question counts with its first ten passages; `none` are the same questions without
the passages that answer them, from which as much is learned. ECE is the mean distance of score and share over
ten bins of scores (Guo et al. 2017, arXiv:1706.04599).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.retriever.searcher import FIRST_STAGE_PASSAGES, MEANING_WEIGHT
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.fusion import Ranking, add_shares, fuse_rankings
from shared.retrieval.encoders.passage_probability import WEIGHTS, PassageEvidence, lead_of
from shared.retrieval.index.passage_index import PassageIndex
from tests.bench.bench_retrieval import index_of
from tests.bench.retrieval_sets import RetrievalSet, beir_set, documentation_set, xquad_set

COUNTED = 10
BINS = 10
RIDGE = 0.1
STEPS = 60
EVERY = 2
"""Every second question of XQuAD is asked: they are much alike."""

Columns = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatedSet:
    """`rows` of what is known of passages [passages, features], and whether each answers its question."""

    name: str
    rows: Columns
    right: Columns


def rated(asked: RetrievalSet, embedder: Embedder) -> tuple[RatedSet, RatedSet]:
    """Search as the retriever does: all passages, and those that do not answer the question."""
    with tempfile.TemporaryDirectory(prefix="penstock-calibration-") as folder:
        index = index_of(asked, embedder, Path(folder))
    return _rated(asked, index, embedder, "", ()), _rated(asked, index, embedder, ", none", asked.gains)


def _rated(
    asked: RetrievalSet,
    index: PassageIndex,
    embedder: Embedder,
    suffix: str,
    left_out: Sequence[Container[str]],
) -> RatedSet:
    rows, right = [], []
    for question, gains, out in zip_longest(asked.questions, asked.gains, left_out, fillvalue=()):
        for name, evidence in _found(index, str(question), embedder, out):
            rows.append(evidence.features)
            right.append(float(name in gains))
    return RatedSet(asked.name + suffix, np.array(rows), np.array(right))


def _found(
    index: PassageIndex, question: str, embedder: Embedder, left_out: Container[str]
) -> list[tuple[str, PassageEvidence]]:
    """Return the documents of the first passages with what is known of these."""
    depth = min(FIRST_STAGE_PASSAGES, len(index))
    allowed = np.array([index.table.file_of(row).name not in left_out for row in range(len(index))])
    asked = embedder.embed_questions([question])
    known = asked.known[0]
    scores, found = index.lexical.search([question], depth, allowed)
    words = {int(row): float(score) for row, score in zip(found[0], scores[0], strict=True) if row >= 0}
    cosines, near = index.search_rows(np.asarray(asked.vectors), depth, allowed)
    meaning = {int(row): float(score) for row, score in zip(near[0], cosines[0], strict=True) if row >= 0}
    others = [row for row in words if row not in meaning]
    meaning |= dict(zip(others, (np.asarray(index.vectors[others]) @ asked.vectors[0]).tolist(), strict=True))
    rankings = [
        Ranking(list(meaning), list(meaning.values()), MEANING_WEIGHT * known),
        Ranking(list(words), list(words.values())),
    ]
    most = index.lexical.most_score(question) or 1.0
    lead = lead_of(list(words.values()), most)
    fused = fuse_rankings(rankings, 2 * FIRST_STAGE_PASSAGES)
    shares = index.lexical.word_shares(question, [row for row, _ in fused])
    return [
        (
            index.table.file_of(row).name,
            PassageEvidence(meaning.get(row, 0.0), words.get(row, 0.0) / most, score, known, lead),
        )
        for row, score in add_shares(fused, shares)[:COUNTED]
    ]


def fitted(sets: Sequence[RatedSet]) -> Columns:
    """Logistic regression in which every set counts alike."""
    rows = np.vstack([each.rows for each in sets])
    right = np.concatenate([each.right for each in sets])
    share = len(right) / len(sets)
    counts = np.concatenate([np.full(len(each.right), share / len(each.right)) for each in sets])
    weights = np.zeros(rows.shape[1])
    for _ in range(STEPS):
        guessed = _likely(rows, weights)
        slope = rows.T @ (counts * (right - guessed)) - RIDGE * weights
        bend = (rows * (counts * guessed * (1 - guessed))[:, None]).T @ rows + RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(bend, slope)
    return weights


def _likely(rows: Columns, weights: Columns) -> Columns:
    return np.asarray(1 / (1 + np.exp(-rows @ weights)))


def calibration_error(likely: Columns, right: Columns) -> float:
    """Return the mean distance of both over bins of `likely`."""
    bins = np.minimum((likely * BINS).astype(int), BINS - 1)
    return sum(
        float(np.mean(bins == each) * abs(likely[bins == each].mean() - right[bins == each].mean()))
        for each in range(BINS)
        if (bins == each).any()
    )


def report(found: RatedSet) -> None:
    """Print one line for a set."""
    likely = _likely(found.rows, np.array(WEIGHTS))
    error = calibration_error(likely, found.right)
    print(
        f"{found.name:22} {len(likely):6} passages  ECE {error:.3f}  "
        f"mean score {likely.mean():.3f}  that answer {found.right.mean():.3f}",
        flush=True,
    )


def half(asked: RetrievalSet, number: int) -> RetrievalSet:
    """Every second question of the first half of a set, or of its second one."""
    middle = len(asked.questions) // 2
    part = slice(0, middle, EVERY) if number == 0 else slice(middle, None, EVERY)
    return replace(asked, questions=asked.questions[part], gains=asked.gains[part])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--learn", type=Path, nargs="*", default=[], help="folders of sets to learn from")
    parser.add_argument("--beir", type=Path, nargs="*", default=[], help="folders of sets to report")
    parser.add_argument("--fit", action="store_true", help="print the weights that are learned")
    options = parser.parse_args()
    embedder = Embedder.load(threads=1)
    english, german = (xquad_set(options.xquad, language) for language in ("en", "de"))
    if options.fit:
        sets = [*map(beir_set, options.learn), half(english, 0), half(german, 0)]
        learned = list(chain.from_iterable(rated(each, embedder) for each in sets))
        print("weights:", ", ".join(f"{each:.2f}" for each in fitted(learned)))
        for each in learned:
            report(each)
        print("not learned from:")
    for asked in (half(english, 1), half(german, 1), documentation_set(), *map(beir_set, options.beir)):
        for each in rated(asked, embedder):
            report(each)


if __name__ == "__main__":
    main()
