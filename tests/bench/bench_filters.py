"""What filters cost a search, and what it finds with them: by meaning, by words, and the mask itself.

    python -m tests.bench.bench_filters [--data DIR] [--passages 100000]

The passages are made as by `bench_index vectors`, one for each document, of which every second, tenth,
hundredth and thousandth says so in its metadata. A mask is made once for an index and a set of filters; the
first one by a field takes in addition what has to be known of it. Times are those of the thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from shared.messages import Filters
from shared.retrieval.documents.passages import Passage, split_passages
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.lexical import Allowed, LexicalIndex
from shared.retrieval.index.metadata_masks import MetadataMasks
from shared.retrieval.index.nearest import NearestVectors
from shared.retrieval.index.passage_table import IndexedFile, PassageTable
from tests.bench.bench_index import QUERIES, K, made_vectors, report_searches, seed_vectors
from tests.support.data import data_dir

SHARES = (2, 10, 100, 1000)
"""One document of so many passes."""
QUESTION_WORDS = 12


def one_of(share: int) -> Filters:
    return ((f"one of {share}", ("yes",)),)


def document(number: int, text: str) -> IndexedFile:
    metadata = tuple((f"one of {share}", "no" if number % share else "yes") for share in SHARES)
    return IndexedFile(f"{number}.md", str(number), (Passage("", text),), (), metadata)


def thread_ms(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began_s)


def book_texts(data: Path, count: int) -> list[str]:
    """Passages of books, over again where there are too few."""
    texts: list[str] = []
    for book in sorted((data / "books").rglob("*.md")):
        if len(texts) >= count:
            break
        text = book.read_text(encoding="utf-8", errors="replace")
        texts += [passage.text for passage in split_passages(text, markdown=True)]
    return (texts * -(-count // len(texts)))[:count]


def search_by_meaning(
    name: str, index: NearestVectors, queries: Vectors, vectors: Vectors, allowed: Allowed | None
) -> None:
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    spent_s, found, wanted = [], 0, 0
    for query in queries:
        began_s = time.thread_time()
        _, got = index.search(query[None], K, allowed)
        spent_s.append(time.thread_time() - began_s)
        best = rows[np.argsort(-(vectors[rows] @ query), kind="stable")[:K]]
        found += len(set(got[0].tolist()) & set(best.tolist()))
        wanted += len(best)
    report_searches(f"{name}, by meaning ({index.kind}), recall@{K} {found / wanted:.4f}", spent_s)


def search_by_words(name: str, index: LexicalIndex, texts: list[str], allowed: Allowed | None) -> None:
    spent_s = []
    for text in texts:
        question = " ".join(text.split()[:QUESTION_WORDS])
        began_s = time.thread_time()
        index.search([question], K, allowed)
        spent_s.append(time.thread_time() - began_s)
    report_searches(f"{name}, by words", spent_s)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=data_dir(), help="folder that has books/")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    if options.data is None:
        parser.error("the books are not here; name their folder with --data")
    seeds = seed_vectors(options.data)
    queries, vectors = seeds[: min(options.queries, QUERIES)], made_vectors(seeds[QUERIES:], options.passages)
    texts = book_texts(options.data, options.passages)
    masks = MetadataMasks(PassageTable.of_files([document(*each) for each in enumerate(texts)]))
    nearest, lexical = NearestVectors.build(vectors), LexicalIndex.build(texts)
    asked = texts[:: max(1, len(texts) // options.queries)]
    search_by_meaning("all", nearest, queries, vectors, None)
    search_by_words("all", lexical, asked, None)
    for share in SHARES:
        filters = one_of(share)
        took_ms = [thread_ms(partial(masks.allowed, of)) for of in (filters, (*filters, *filters), filters)]
        print(
            "one of {}: mask {:.2f} ms first, {:.2f} of other filters, {:.3f} again".format(share, *took_ms)
        )
        allowed = masks.allowed(filters)
        search_by_meaning(f"one of {share}", nearest, queries, vectors, allowed)
        search_by_words(f"one of {share}", lexical, asked, allowed)


if __name__ == "__main__":
    main()
