"""What a search alone takes through the whole stack, beside the same search in this process.

    python -m tests.bench.bench_retrieve_call [--rounds 5] [--passages 5] [--texts 32]

Questions about the documentation, which `penstock up` searches, one call at a time on an idle stack: Retrieve
over gRPC, OpenAI's search over HTTP, Retrieve with late interaction, and Rerank of passages of these pages.
In every round each question is worded anew, so that it has to be embedded; the ways take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import torch

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.launcher.options import DOCUMENTS
from services.retriever.config import RetrieverConfig
from services.retriever.question import SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.index.build import build_index
from shared.retrieval.index.passage_index import PassageIndex
from tests.bench.document_questions import read_questions
from tests.support.client import connect
from tests.support.http import call, http_client
from tests.support.percentile import percentile
from tests.support.stack import RERANKING, Stack

PATIENCE_S = 60.0
SEARCH_PATH = "/v1/vector_stores/default/search"

Way = Callable[[str], Awaitable[None]]


class InProcess:
    """The retriever's own search of the same documents, in one thread."""

    def __init__(self, index: PassageIndex, embedder: Embedder, k: int) -> None:
        self._searcher = Searcher(QuestionVectors(embedder, 0))
        self._corpus = ServedCorpus.of_index(index)
        self._k = k

    async def search(self, question: str) -> None:
        wanted = Retrieve(question, self._k, may_degrade=False)
        (answer,) = self._searcher.search_passages(
            [SearchAsk(wanted, Deadline.after(PATIENCE_S), self._corpus)]
        )
        assert isinstance(answer, Retrieved)
        assert len(answer.passages) == self._k


class OverTheEdge:
    """Calls of one client that keeps its connections."""

    def __init__(
        self, stub: rpc.InferenceStub, client: aiohttp.ClientSession, texts: list[str], k: int
    ) -> None:
        self._stub = stub
        self._client = client
        self._texts = texts
        self._k = k

    async def search(self, question: str) -> None:
        await self._retrieve(question, rerank=False)

    async def search_and_rerank(self, question: str) -> None:
        await self._retrieve(question, rerank=True)

    async def search_over_http(self, question: str) -> None:
        body = {
            "query": question,
            "max_num_results": self._k,
            "ranking_options": {"ranker": "none"},
        }
        reply = await call(self._client, SEARCH_PATH, body)
        assert len(reply.body["data"]) == self._k

    async def rerank(self, question: str) -> None:
        answer = await self._stub.Rerank(
            pb.RerankRequest(query=question, texts=self._texts), timeout=PATIENCE_S
        )
        assert len(answer.texts) == len(self._texts)

    async def _retrieve(self, question: str, *, rerank: bool) -> None:
        request = pb.RetrieveRequest(query=question, k=self._k, rerank=rerank, may_degrade=False)
        answer = await self._stub.Retrieve(request, timeout=PATIENCE_S)
        assert len(answer.passages) == self._k


async def timed(way: Way, question: str) -> float:
    """Milliseconds."""
    began_s = time.perf_counter()
    await way(question)
    return (time.perf_counter() - began_s) * 1e3


async def measured(stack: Stack, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each call, by way; the first round warms up and is left out."""
    embedder = Embedder.load()
    with tempfile.TemporaryDirectory(prefix="penstock-retrieve-call-") as folder:
        built = build_index(str(DOCUMENTS), Path(folder), embedder, lambda *_: None, waiting=lambda _: None)
    table = built.index.table
    texts = [table.passage(row % len(table)).text for row in range(options.texts)]
    questions = [each.question for each in read_questions("all")]
    async with connect(stack.grpc) as stub, http_client(stack.http) as client:
        edge = OverTheEdge(stub, client, texts, options.passages)
        ways: dict[str, Way] = {
            "search in process": InProcess(built.index, embedder, options.passages).search,
            "Retrieve, no reranking": edge.search,
            "search over HTTP": edge.search_over_http,
            "Retrieve, reranked": edge.search_and_rerank,
            f"Rerank of {options.texts} texts": edge.rerank,
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.rounds + 1):
            for question in questions:
                for name, way in ways.items():
                    took_ms = await timed(way, f"{question} ({name}, {turn})")
                    if turn:
                        found[name].append(took_ms)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--texts", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(RetrieverConfig().threads)  # as the retriever does
    with Stack("--speculator", "0", "--retriever", "1", environ=RERANKING) as stack:
        found = asyncio.run(measured(stack, options))
    alone_ms = percentile(next(iter(found.values())), 0.5)
    for name, times_ms in found.items():
        p50_ms, p95_ms = percentile(times_ms, 0.5), percentile(times_ms, 0.95)
        print(f"{name:24} p50 {p50_ms:6.2f} ms  p95 {p95_ms:6.2f} ms  {p50_ms / alone_ms:5.2f}x")


if __name__ == "__main__":
    main()
