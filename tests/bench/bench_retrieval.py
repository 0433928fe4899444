"""How often a question finds its document: by words, by meaning, by both.

    python -m tests.bench.bench_retrieval --xquad DIR [--set xquad-de] [--reranker DIR]

The sets are the documentation's questions (the half that may be looked at) and XQuAD in seven languages, each
with an index of its own as a retriever makes it. A document counts where its first passage is found. With a
reranker (a Hugging Face cross-encoder), also in its order, and how long that took.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from services.retriever.passage_ranker import PassageRanker, Unranked
from services.retriever.question import SearchAsk
from services.retriever.searcher import FIRST_STAGE_PASSAGES, Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved
from shared.retrieval.build import build_index
from shared.retrieval.cross_encoder import CrossEncoder
from shared.retrieval.embedder import Embedder
from shared.retrieval.index import PassageIndex
from shared.text.passage_source import document_of
from tests.bench.ranking_scores import RankingScores, ranking_scores
from tests.bench.retrieval_sets import RetrievalSet, retrieval_sets

PATIENCE_S = 3600.0
MOST_PASSAGES = 16


def index_of(found: RetrievalSet, embedder: Embedder, folder: Path) -> PassageIndex:
    """As a retriever makes it of a folder with these documents."""
    corpus = folder / "corpus"
    for name, text in found.documents.items():
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text(text, encoding="utf-8")
    return build_index(str(corpus), folder / "state", embedder, lambda *_: None, waiting=lambda _: None).index


def _documents(index: PassageIndex, rows: Iterable[int]) -> list[str]:
    return [index.table.file_of(row).name for row in rows if row >= 0]


def by_words(index: PassageIndex, asked: RetrievalSet) -> RankingScores:
    """BM25 alone."""
    _, rows = index.lexical.search(asked.questions, min(FIRST_STAGE_PASSAGES, len(index)))
    return ranking_scores([_documents(index, found.tolist()) for found in rows], asked.right)


def by_meaning(index: PassageIndex, asked: RetrievalSet, embedder: Embedder) -> RankingScores:
    """Vectors alone."""
    vectors = np.asarray(embedder.embed_questions(asked.questions).vectors)
    _, rows = index.search_rows(vectors, min(FIRST_STAGE_PASSAGES, len(index)))
    return ranking_scores([_documents(index, found.tolist()) for found in rows], asked.right)


def searched(
    searcher: Searcher, corpus: ServedCorpus, asked: RetrievalSet, ranker: PassageRanker | None = None
) -> tuple[RankingScores, Sequence[float]]:
    """What the retriever answers, one question after the other, and the seconds that each took."""
    rankings, seconds = [], []
    for question in asked.questions:
        wanted = Retrieve(question, MOST_PASSAGES, may_degrade=True)
        ask = SearchAsk(wanted, Deadline.after(PATIENCE_S), corpus)
        begun = time.perf_counter()
        (answer,) = searcher.search_passages([ask])
        if isinstance(answer, Unranked):
            assert ranker is not None
            answer = ranker.rank_passages(ask, answer)
        seconds.append(time.perf_counter() - begun)
        assert isinstance(answer, Retrieved)
        rankings.append([document_of(passage.source) for passage in answer.passages])
    return ranking_scores(rankings, asked.right), seconds


def _report(name: str, scores: RankingScores, seconds: Sequence[float] = ()) -> None:
    took = f"  {1000 * statistics.median(seconds):.1f} ms a question" if seconds else ""
    print(f"  {name:9} {scores}{took}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--set", default="", help="of the sets that with this in its name")
    parser.add_argument("--reranker", type=Path, help="folder of a cross-encoder")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    embedder = Embedder.load(threads=options.threads)
    reranker = CrossEncoder.load(options.reranker, threads=options.threads) if options.reranker else None
    for asked in retrieval_sets(options.xquad):
        if options.set not in asked.name:
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-retrieval-") as folder:
            index = index_of(asked, embedder, Path(folder))
        print(f"{asked.name}: {len(asked.questions)} questions, {len(index)} passages")
        _report("words", by_words(index, asked))
        _report("meaning", by_meaning(index, asked, embedder))
        corpus = ServedCorpus.of_index(index)
        _report("both", *searched(Searcher(embedder), corpus, asked))
        if reranker is not None:
            searcher = Searcher(embedder, is_reranked=True)
            _report("reranked", *searched(searcher, corpus, asked, PassageRanker(reranker)))


if __name__ == "__main__":
    main()
