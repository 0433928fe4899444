"""What a question costs a retriever: by itself, in a batch of those that wait, and when it is asked again.

    python -m tests.bench.bench_questions --xquad DIR [--rounds 5] [--batch 16]

English questions of XQuAD among its passages, searched by words and by meaning in the retriever's one thread,
batches as its actor makes them. The ways take turns; printed are the medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.retriever.config import RetrieverConfig
from services.retriever.question import SearchAsk
from services.retriever.question_batch import next_batch
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from tests.bench.bench_retrieval import PATIENCE_S, index_of
from tests.bench.retrieval_sets import xquad_set

PASSAGES = 3


@dataclass(frozen=True, slots=True)
class Queued:
    """As it waits at the actor."""

    ask: SearchAsk

    @property
    def end(self) -> Deadline:
        return self.ask.end

    @property
    def question_bytes(self) -> int:
        return len(self.ask.retrieve.query.encode())


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all the questions."""

    wall_s: float
    cpu_s: float


def searched(
    searcher: Searcher, corpus: ServedCorpus, questions: Sequence[str], most: int, most_bytes: int
) -> Cost:
    """All of them wait; `most` and `most_bytes` bound a batch."""
    end = Deadline.after(PATIENCE_S)
    wanted = [Retrieve(each, PASSAGES, may_degrade=True) for each in questions]
    waiting = deque(Queued(SearchAsk(each, end, corpus)) for each in wanted)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    while batch := next_batch(waiting, most, most_bytes):
        for queued in batch:
            waiting.remove(queued)
        answers = searcher.search_passages([queued.ask for queued in batch])
        assert all(isinstance(answer, Retrieved) and answer.passages for answer in answers)
    return Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--batch", type=int, default=RetrieverConfig().batch)
    parser.add_argument("--batch-bytes", type=int, default=RetrieverConfig().batch_bytes)
    options = parser.parse_args()
    embedder = Embedder.load()
    asked = xquad_set(options.xquad, "en")
    with tempfile.TemporaryDirectory(prefix="penstock-questions-") as folder:
        index = index_of(asked, embedder, Path(folder))
    questions = asked.questions[:: max(1, len(asked.questions) // options.questions)][: options.questions]
    corpus = ServedCorpus.of_index(index)
    plain, kept = Searcher(QuestionVectors(embedder, 0)), Searcher(QuestionVectors(embedder))
    searched(kept, corpus, questions, options.batch, options.batch_bytes)

    ways: dict[str, Callable[[], Cost]] = {
        "one by one": lambda: searched(plain, corpus, questions, 1, options.batch_bytes),
        "in batches": lambda: searched(plain, corpus, questions, options.batch, options.batch_bytes),
        "asked again": lambda: searched(kept, corpus, questions, 1, options.batch_bytes),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            costs[name].append(way())
    alone_s = statistics.median(cost.cpu_s for cost in costs["one by one"])
    print(f"{len(questions)} questions of XQuAD, {len(index)} passages, medians of {options.rounds} rounds")
    for name, found in costs.items():
        cpu_s = statistics.median(cost.cpu_s for cost in found)
        rate = len(questions) / statistics.median(cost.wall_s for cost in found)
        print(
            f"  {name:12} {rate:6.0f} questions/s  {1000 * cpu_s / len(questions):5.2f} ms of CPU each"
            f"  {alone_s / cpu_s:.2f}x"
        )


if __name__ == "__main__":
    main()
