"""python -m services.retriever"""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.retriever.config import RetrieverConfig
    from shared.process.parts_of_torch import leave_parts_of_torch
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("retriever", RetrieverConfig)
        leave_parts_of_torch()

    import asyncio

    import torch

    from services.retriever.actor import RetrieverActor
    from services.retriever.cache_actor import CACHE_MESSAGES, CacheActor
    from services.retriever.computing import Computing
    from services.retriever.corpora import Corpora
    from services.retriever.corpus_indexing import CorpusIndexing
    from services.retriever.passage_ranker import PassageRanker
    from services.retriever.reranker_choice import choose_reranker
    from services.retriever.searcher import Searcher
    from services.retriever.served_corpus import ServedCorpus
    from services.retriever.text_jobs import TextWork
    from shared.bus import Delivery
    from shared.config.fields import ConfigError
    from shared.config.named_corpus import NamedCorpus
    from shared.engine.native.weight_cache import WeightCache
    from shared.errors import InvalidRequest
    from shared.process.cores import usable_cores
    from shared.process.serve_actor import serve_actor
    from shared.process.service import Service, run_service
    from shared.retrieval.encoders.embedder import Embedder
    from shared.retrieval.encoders.late_interaction import NAME as LATE_INTERACTION
    from shared.retrieval.encoders.question_vectors import QuestionVectors

WARM_UP = "warm up"


async def body(service: Service[RetrieverConfig]) -> None:
    config = service.config
    corpora = Corpora(map(ServedCorpus, _named_corpora(config)))
    # All cores for the index; a few questions are one batch.
    cache = WeightCache.of(config.weight_cache_dir, config.weight_cache_mb)
    embedder = await asyncio.to_thread(Embedder.load, threads=usable_cores(), cache=cache)
    reranker = await asyncio.to_thread(choose_reranker, config, embedder)
    vectors = QuestionVectors(embedder, config.question_vectors_mb << 20)
    indexing = CorpusIndexing(service, embedder, corpora)
    indexing.start()
    await indexing.first_round(config.index_wait_s)
    await asyncio.to_thread(_warm_up, config, embedder)
    computing = Computing(
        Searcher(
            vectors,
            is_reranked=reranker is not None,
            reranks_agreed=reranker is not None and reranker.name != LATE_INTERACTION,
        ).search_passages,
        PassageRanker(reranker) if reranker else None,
        TextWork(embedder, reranker),
    )
    actor = service.supervisor.start(
        lambda: RetrieverActor(
            service,
            corpora,
            computing.compute,
            reranker="" if reranker is None else reranker.name,
        )
    )
    answers = service.supervisor.start(lambda: CacheActor(service, vectors.embed_questions, corpora))

    def receive(delivery: Delivery) -> None:
        (answers if isinstance(delivery.message, CACHE_MESSAGES) else actor).living.receive(delivery)

    await serve_actor(service, actor, receive)


def _named_corpora(config: RetrieverConfig) -> tuple[NamedCorpus, ...]:
    try:
        return config.named_corpora()
    except InvalidRequest as error:
        raise ConfigError(error.message) from error


def _warm_up(config: RetrieverConfig, embedder: Embedder) -> None:
    """The first forward pass is not to be a request's."""
    torch.set_num_threads(config.threads)
    embedder.embed([WARM_UP])
    embedder.give_back_pages()


if __name__ == "__main__":
    run_service("retriever", RetrieverConfig, body)
