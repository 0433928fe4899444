"""How often each sentence of an answer is cited from the passage that supports it, and from no other.

    python -m tests.bench.bench_citations --xquad FILE [--fit] [--count 100]

The answers are made of XQuAD's passages and questions (`cited_answers`): of each sentence it is known what
supports it. Precision is the share of citations that name the right passage, recall that of the supported
sentences that have one; `overlap` is how much of the cited characters and of the right sentence are the same.
What the features weigh is learned from half of the articles (`--fit` prints it); the other half is reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.messages import CitedSentence
from shared.retrieval.citing.answer_citations import (
    Match,
    cite_answer,
    match_sentences,
)
from shared.retrieval.encoders.embedder import Embedder
from tests.bench.cited_answers import NOWHERE, LabelledAnswer, LabelledSentence, labelled_answers

FIT_HALF, REPORTED_HALF = 0, 1
RIDGE = 0.02
ROUNDS, STEPS = 10, 50
START = (0.0, 1.0, 1.0, 0.0)
"""The best part of a sentence is first the one with most of its words and the nearest vector: what is learned
depends on nothing that was learned before."""

Weights = npt.NDArray[np.float64]


def cited(answer: LabelledAnswer, embedder: Embedder) -> list[tuple[LabelledSentence, CitedSentence]]:
    """Each labelled sentence beside what was found for the sentence that begins with it, or holds it."""
    found = cite_answer(answer.question, answer.text, answer.passages, embedder.embed_passages, lambda: True)
    pairs, at = [], 0
    for sentence in answer.sentences:
        pairs.append((sentence, next(each for each in found if at < each.end)))
        at += len(sentence.text) + 1
    return pairs


def overlap(label: LabelledSentence, found: CitedSentence) -> float:
    """Return the characters that both have, of those that either has."""
    both = min(label.span.end, found.passage_end) - max(label.span.start, found.passage_start)
    either = max(label.span.end, found.passage_end) - min(label.span.start, found.passage_start)
    return max(0, both) / either


@dataclass(frozen=True, slots=True)
class CitationScores:
    """`counts` and `right` are by kind of sentence; `overlap` is the mean of those that are cited rightly."""

    precision: float
    recall: float
    overlap: float
    counts: Counter[str]
    right: Counter[str]


def citation_scores(pairs: Sequence[tuple[LabelledSentence, CitedSentence]]) -> CitationScores:
    """Count what became of labelled sentences; nothing is right where nothing should be cited, and is not."""
    given = [(label, found) for label, found in pairs if found.place != NOWHERE]
    right = [(label, found) for label, found in given if label.passage == found.place]
    supported = sum(label.passage != NOWHERE for label, _ in pairs)
    return CitationScores(
        len(right) / len(given),
        len(right) / supported,
        statistics.fmean(overlap(label, found) for label, found in right),
        Counter(label.kind for label, _ in pairs),
        Counter(label.kind for label, found in pairs if label.passage == found.place),
    )


def report(pairs: Sequence[tuple[LabelledSentence, CitedSentence]], seconds: Sequence[float]) -> None:
    """Print precision, recall and what became of each kind."""
    scores = citation_scores(pairs)
    print(
        f"  {len(seconds)} answers, {len(pairs)} sentences: precision {scores.precision:.3f}  "
        f"recall {scores.recall:.3f}  overlap {scores.overlap:.3f}  "
        f"{1000 * statistics.median(seconds):.1f} ms of CPU an answer"
    )
    kinds = sorted(scores.counts.items())
    print("  right: " + "  ".join(f"{kind} {scores.right[kind]}/{of}" for kind, of in kinds))


def _row(match: Match) -> list[float]:
    return [1.0, match.coverage, match.cosine, match.stitched]


def fitted(answers: Sequence[LabelledAnswer], embedder: Embedder) -> Weights:
    """Logistic regression over the best match of each sentence, chosen anew by what was learned so far."""
    known: list[tuple[int, list[Match]]] = []
    for answer in answers:
        texts = [sentence.text for sentence in answer.sentences]
        found = match_sentences(answer.question, texts, answer.passages, embedder.embed_passages)
        for sentence, matches in zip(answer.sentences, found, strict=True):
            if usable := [each for each in matches if each.may_support]:
                known.append((sentence.passage, usable))
    weights = np.array(START)
    for _ in range(ROUNDS):
        best = [(place, max(of, key=lambda each: float(np.dot(weights, _row(each))))) for place, of in known]
        rows = np.array([_row(match) for _, match in best])
        right = np.array([float(place == match.part.passage + 1) for place, match in best])
        for _ in range(STEPS):
            guessed = 1 / (1 + np.exp(-rows @ weights))
            slope = rows.T @ (right - guessed) - RIDGE * weights
            bend = (rows * (guessed * (1 - guessed))[:, None]).T @ rows + RIDGE * np.eye(len(weights))
            weights = weights + np.linalg.solve(bend, slope)
    return weights


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="XQuAD's English file")
    parser.add_argument("--count", type=int, default=100, help="answers of each half")
    parser.add_argument("--fit", action="store_true", help="print the weights learned from the first half")
    options = parser.parse_args()
    embedder = Embedder.load(threads=1)
    if options.fit:
        learned = fitted(labelled_answers(options.xquad, FIT_HALF, options.count), embedder)
        print("weights of 1, coverage, cosine, stitched:", ", ".join(f"{each:.2f}" for each in learned))
    for half, name in ((FIT_HALF, "learned from"), (REPORTED_HALF, "reported")):
        pairs, seconds = [], []
        for answer in labelled_answers(options.xquad, half, options.count):
            begun = time.process_time()
            pairs += cited(answer, embedder)
            seconds.append(time.process_time() - begun)
        print(name)
        report(pairs, seconds)


if __name__ == "__main__":
    main()
