"""What an index of books costs, and how near a search in part of the vectors comes to one in all of them.

    python -m tests.bench.bench_index books [--data DIR] [--passages 20000] [--threads 2]
    python -m tests.bench.bench_index vectors [--data DIR] [--vectors 1000000] [--kinds flat,hnsw,ivf-pq]

`books` indexes whole books as `penstock index` does, and again after one of them has changed. `vectors` makes
as many vectors as asked for of 6,000 passages of books: between a passage and one of its ten neighbours, with
noise in the directions in which passages differ. 1,000 other passages are the queries. Times are those of the
thread, so that others on the same cores change little; one thread searches and builds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import faiss
import numpy as np

from shared.retrieval.documents.passages import split_passages
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.build import build_index
from shared.retrieval.index.lexical import LexicalIndex
from shared.retrieval.index.nearest import KINDS, NearestVectors
from tests.support.data import data_dir
from tests.support.percentile import percentile

Result = TypeVar("Result")

K = 10
QUERIES = 1000
SEEDS = 6000
NEIGHBOURS = 10
NOISE = 0.5
"""The noise as a part of the standard deviation along each principal direction."""
PART = 50_000
SEED = 3


def timed(work: Callable[[], Result]) -> tuple[Result, float, float]:
    """(what it returns, seconds, seconds of CPU in all threads)"""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - began_s, time.process_time() - began_cpu_s


def report_searches(name: str, seconds: Sequence[float]) -> None:
    p50_ms, p99_ms = (1000 * percentile(seconds, share) for share in (0.5, 0.99))
    print(f"{name}: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms", flush=True)


def measure_books(data: Path, passages: int, threads: int) -> None:
    """Whole books until there are so many passages."""
    with tempfile.TemporaryDirectory(prefix="penstock-books-") as work:
        corpus, state = Path(work, "books"), Path(work, "state")
        corpus.mkdir()
        count = 0
        for book in sorted((data / "books").rglob("*.md")):
            if count >= passages:
                break
            text = book.read_text(encoding="utf-8", errors="replace")
            count += len(split_passages(text, markdown=True))
            (corpus / book.name).write_text(text, encoding="utf-8")
        embedder = Embedder.load(threads=threads)

        def index_books() -> tuple[int, int, Path]:
            built = build_index(str(corpus), state, embedder, lambda *_: None, waiting=lambda _: None)
            return len(built.index), built.embedded, built.folder

        (total, embedded, folder), took_s, cpu_s = timed(index_books)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        speeds = f"{embedded / took_s:.0f} per second, {embedded / cpu_s:.0f} per CPU second"
        print(f"{total} passages in {took_s:.1f} s: {speeds}")
        print(f"{size / total:.0f} bytes of disk each")
        changed = next(corpus.iterdir())
        changed.write_text(changed.read_text(encoding="utf-8") + "\nOne more sentence.\n", encoding="utf-8")
        for what in ("one sentence more", "no change"):
            (_, embedded, _), took_s, cpu_s = timed(index_books)
            print(f"after {what}: {embedded} embedded, {took_s:.2f} s, {cpu_s:.2f} s of CPU")
        measure_words(corpus)


def measure_words(corpus: Path) -> None:
    """The lexical index of these books, asked with sentences out of them."""
    texts = [
        passage.text
        for book in corpus.iterdir()
        for passage in split_passages(book.read_text(encoding="utf-8"), markdown=True)
    ]
    index, _, cpu_s = timed(lambda: LexicalIndex.build(texts))
    print(f"terms of {len(texts)} passages: {cpu_s:.1f} s of CPU")
    questions = [" ".join(text.split()[:12]) for text in random.Random(SEED).sample(texts, QUERIES)]
    spent = []
    for question in questions:
        began_s = time.thread_time()
        index.search([question], K)
        spent.append(time.thread_time() - began_s)
    report_searches("a search by twelve words", spent)


def seed_vectors(data: Path) -> Vectors:
    """Of passages from all over the books, in any order."""
    chosen = random.Random(SEED)
    texts: list[str] = []
    books = sorted((data / "books").rglob("*.md"))
    for book in books:
        passages = split_passages(book.read_text(encoding="utf-8", errors="replace"), markdown=True)
        count = min(len(passages), 1 + (SEEDS + QUERIES) // len(books))
        texts += [passage.embedded_text for passage in chosen.sample(passages, count)]
    chosen.shuffle(texts)
    return Embedder.load().embed_passages(texts[: SEEDS + QUERIES])


def made_vectors(seeds: Vectors, count: int) -> Vectors:
    draw = np.random.default_rng(SEED)
    neighbours = NearestVectors.build(seeds, "flat").search(seeds, NEIGHBOURS + 1)[1]
    _, spread, directions = np.linalg.svd(seeds - seeds.mean(axis=0), full_matrices=False)
    scale = NOISE * spread / np.sqrt(len(seeds))
    vectors = np.empty((count, seeds.shape[1]), np.float32)
    for begin in range(0, count, PART):
        part = min(PART, count - begin)
        one = draw.integers(len(seeds), size=part)
        other = neighbours[one, draw.integers(1, NEIGHBOURS + 1, size=part)]
        share = draw.random((part, 1), dtype=np.float32)
        noise = (draw.standard_normal((part, len(scale)), dtype=np.float32) * scale) @ directions
        mixed = share * seeds[one] + (1 - share) * seeds[other] + noise
        vectors[begin : begin + part] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return vectors


def measure_vectors(data: Path, count: int, kinds: Sequence[str]) -> None:
    seeds = seed_vectors(data)
    queries, vectors = seeds[:QUERIES], made_vectors(seeds[QUERIES:], count)
    _, exact = faiss.knn(queries, vectors, K, metric=faiss.METRIC_INNER_PRODUCT)
    for kind in kinds:
        began_s = time.thread_time()
        index = NearestVectors.build(vectors, kind)
        built_s = time.thread_time() - began_s
        spent, found = [], 0
        for query, best in zip(queries, exact.tolist(), strict=True):
            began_s = time.thread_time()
            _, rows = index.search(query[None], K)
            spent.append(time.thread_time() - began_s)
            found += len(set(rows[0].tolist()) & set(best))
        print(f"{kind}: built in {built_s:.0f} s, recall@10 {found / exact.size:.4f}")
        report_searches(f"{kind}, one of {count} vectors", spent)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("books", "vectors"))
    parser.add_argument("--data", type=Path, default=data_dir(), help="folder that has books/")
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    options = parser.parse_args()
    if options.data is None:
        parser.error("the books are not here; name their folder with --data")
    if options.what == "books":
        measure_books(options.data, options.passages, options.threads)
    else:
        measure_vectors(options.data, options.vectors, options.kinds)


if __name__ == "__main__":
    main()
