"""How often the semantic cache finds an answer that is right, and how often one that is wrong, by threshold.

    PENSTOCK_TEST_DATA=DIR python -m tests.bench.bench_semantic_cache

Of pairs of questions, one kept and one asked: the share that the cache takes for the same, by their vectors
alone and with what else it compares. Pairs that one answer is right for should be found, all others never.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from services.retriever.question_facts import facts_of
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.vectors import Vectors
from tests.bench.question_pairs import (
    QuestionPair,
    edited,
    neighbours,
    read_questions,
    rewritten,
    same_answer,
    translated,
)
from tests.support.data import data_dir

THRESHOLDS = (0.80, 0.85, 0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
LANGUAGES = ("de", "ru", "zh", "th", "ar", "hi")
LOOKUPS = 200


def similarities(embedder: Embedder, pairs: Sequence[QuestionPair]) -> Vectors:  # [pairs]
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.one, pair.other)))
    rows = {text: row for row, text in enumerate(texts)}
    vectors = embedder.embed(texts)  # [texts, dimensions]
    ones, others = (vectors[[rows[text] for text in side]] for side in _sides(pairs))
    return np.asarray((ones * others).sum(axis=1), dtype=np.float32)


def _sides(pairs: Sequence[QuestionPair]) -> tuple[list[str], list[str]]:
    return [pair.one for pair in pairs], [pair.other for pair in pairs]


def report(title: str, embedder: Embedder, pairs: Iterable[QuestionPair]) -> None:
    """A line for each kind: by vectors alone, and with the snapshot that have to be the same."""
    listed = list(pairs)
    found = similarities(embedder, listed)
    by_kind: dict[str, list[int]] = defaultdict(list)
    for row, pair in enumerate(listed):
        by_kind[pair.kind].append(row)
    for kind, rows in by_kind.items():
        same = np.array([facts_of(listed[row].one).agree_with(facts_of(listed[row].other)) for row in rows])
        values = found[rows]
        for name, allowed in (("vectors", np.ones(len(rows), dtype=bool)), ("+ snapshot", same)):
            shares = (100 * float(((values >= limit) & allowed).mean()) for limit in THRESHOLDS)
            cells = " ".join(f"{share:6.2f}" for share in shares)
            print(f"{title:9} {kind:24} {len(rows):5} {name:8} {cells}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    data = data_dir()
    if data is None:
        raise SystemExit("PENSTOCK_TEST_DATA names no folder: set it to the one with xquad/")
    embedder, folder = Embedder.load(), data / "xquad"
    english = read_questions(folder / "xquad.en.json")
    print(f"{'':9} {'% of pairs':24} {'':5} {'':8} " + " ".join(f"{limit:6.2f}" for limit in THRESHOLDS))
    report("right", embedder, [*rewritten(english), *same_answer(english)])
    report("wrong", embedder, [*neighbours(english), *edited(english)])
    for language in LANGUAGES:
        others = read_questions(folder / f"xquad.{language}.json")
        report(f"wrong {language}", embedder, [*neighbours(others), *translated(english, others)])
    times = []
    for asked in english[:LOOKUPS]:
        started = time.perf_counter()
        embedder.embed([asked.text])
        times.append((time.perf_counter() - started) * 1e3)
    print(f"one question embedded: {statistics.median(times):.2f} ms p50, {max(times):.2f} ms at most")


if __name__ == "__main__":
    main()
