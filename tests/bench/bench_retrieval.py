"""How often a question finds its document: by words, by meaning, by both.

    python -m tests.bench.bench_retrieval [--xquad DIR] [--beir DIR …] [--set xquad-de] [--reranker DIR]

The sets are the documentation's questions (the half that may be looked at), XQuAD in seven languages and any
set in the form of BEIR (corpus.jsonl, queries.jsonl, qrels/test.tsv), each with an index of its own as a
retriever makes it. A document counts where its first passage is found. Then in the order of a reranker (late
interaction, or the Hugging Face cross-encoder in a folder): of every question, and of those alone where words
and meaning do not agree on the best passage and none is clearly the best, as retrievers do by late
interaction; how long that took, and
the difference with the bounds that 95 of 100 samples of the questions are within.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from services.retriever.config import RetrieverConfig
from services.retriever.passage_ranker import PassageRanker, Unranked
from services.retriever.question import SearchAsk
from services.retriever.reranker_choice import choose_reranker
from services.retriever.searcher import FIRST_STAGE_PASSAGES, Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.late_interaction import NAME
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.index.build import build_index
from shared.retrieval.index.passage_index import PassageIndex
from shared.text.passage_source import document_of
from tests.bench.ranking_scores import RankingScores, ndcg_difference, ranking_scores
from tests.bench.retrieval_sets import RetrievalSet, beir_set, retrieval_sets

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
    return ranking_scores([_documents(index, found.tolist()) for found in rows], asked.gains)


def by_meaning(index: PassageIndex, asked: RetrievalSet, embedder: Embedder) -> RankingScores:
    """Vectors alone."""
    vectors = np.asarray(embedder.embed_questions(asked.questions).vectors)
    _, rows = index.search_rows(vectors, min(FIRST_STAGE_PASSAGES, len(index)))
    return ranking_scores([_documents(index, found.tolist()) for found in rows], asked.gains)


def searched(
    searcher: Searcher, corpus: ServedCorpus, asked: RetrievalSet, ranker: PassageRanker | None = None
) -> tuple[RankingScores, Sequence[float]]:
    """What the retriever answers, one question after the other, and the seconds of CPU that each took."""
    rankings, seconds = [], []
    for question in asked.questions:
        wanted = Retrieve(question, MOST_PASSAGES, may_degrade=True)
        ask = SearchAsk(wanted, Deadline.after(PATIENCE_S), corpus)
        begun = time.process_time()
        (answer,) = searcher.search_passages([ask])
        if isinstance(answer, Unranked):
            assert ranker is not None
            answer = ranker.rank_passages(ask, answer)
        seconds.append(time.process_time() - begun)
        assert isinstance(answer, Retrieved)
        rankings.append([document_of(passage.source) for passage in answer.passages])
    return ranking_scores(rankings, asked.gains), seconds


def _report(name: str, scores: RankingScores, seconds: Sequence[float] = ()) -> None:
    took = f"  {1000 * statistics.median(seconds):.1f} ms of CPU a question" if seconds else ""
    print(f"  {name:9} {scores}{took}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, help="folder of XQuAD's files: the documentation and XQuAD")
    parser.add_argument("--beir", type=Path, nargs="*", default=[], help="folders of sets in BEIR's form")
    parser.add_argument("--set", default="", help="of the sets that with this in its name")
    parser.add_argument("--reranker", default=NAME, help=f"{NAME}, or the folder of a cross-encoder")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    embedder = Embedder.load(threads=options.threads)
    reranker = choose_reranker(RetrieverConfig(reranker=options.reranker, threads=options.threads), embedder)
    assert reranker is not None
    named = map(beir_set, options.beir)
    for asked in chain(retrieval_sets(options.xquad) if options.xquad else (), named):
        if options.set not in asked.name:
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-retrieval-") as folder:
            index = index_of(asked, embedder, Path(folder))
        print(f"{asked.name}: {len(asked.questions)} questions, {len(index)} passages")
        _report("words", by_words(index, asked))
        _report("meaning", by_meaning(index, asked, embedder))
        corpus = ServedCorpus.of_index(index)
        both, seconds = searched(Searcher(QuestionVectors(embedder, 0)), corpus, asked)
        _report("both", both, seconds)
        for name, reranks_agreed in (("reranked", True), ("disagreed", False)):
            reranking = Searcher(
                QuestionVectors(embedder, 0), is_reranked=True, reranks_agreed=reranks_agreed
            )
            reranked, seconds = searched(reranking, corpus, asked, PassageRanker(reranker))
            _report(name, reranked, seconds)
            higher, low, high = ndcg_difference(both, reranked)
            took = f"{1000 * statistics.fmean(seconds):.1f} ms of CPU on average"
            print(f"  {name}, nDCG@10 {higher:+.4f} ({low:+.4f} to {high:+.4f}), {took}", flush=True)


if __name__ == "__main__":
    main()
