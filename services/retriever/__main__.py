"""python -m services.retriever"""

from __future__ import annotations

from shared.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    import asyncio
    import time
    from pathlib import Path

    import structlog
    import torch

    from services.retriever.actor import RetrieverActor
    from services.retriever.cache_actor import CACHE_MESSAGES, CacheActor
    from services.retriever.config import RetrieverConfig
    from services.retriever.index_follower import IndexFollower
    from services.retriever.searcher import Searcher
    from services.retriever.text_jobs import TextWork
    from shared.bus import Delivery
    from shared.bus.subjects import CANCEL_ALL, inbox
    from shared.cores import usable_cores
    from shared.retrieval.build import MODEL, build_index
    from shared.retrieval.cross_encoder import CrossEncoder
    from shared.retrieval.embedder import Embedder
    from shared.retrieval.question_vectors import QuestionVectors
    from shared.retrieval.rerank import Reranker
    from shared.service import Service, run_service

DRAIN_POLL_S = 0.02
PROGRESS_EVERY_S = 2.0
WARM_UP = "warm up"

log = structlog.get_logger()


async def body(service: Service[RetrieverConfig]) -> None:
    config = service.config
    # All cores for the index; a few questions are one batch.
    embedder = await asyncio.to_thread(Embedder.load, threads=usable_cores())
    reranker = await asyncio.to_thread(_reranker, config)
    vectors = QuestionVectors(embedder, config.question_vectors_mb << 20)
    searcher, follower = None, None
    if config.corpus:
        searcher, follower = await asyncio.to_thread(_searcher, service, embedder, vectors, reranker)
    await asyncio.to_thread(_warm_up, config, embedder)
    texts = TextWork(embedder, reranker)
    actor = service.supervisor.start(
        lambda: RetrieverActor(
            service,
            searcher.search_passages if searcher else None,
            texts.run,
            "" if reranker is None else reranker.name,
        )
    )
    cache = service.supervisor.start(
        lambda: CacheActor(
            service,
            vectors.embed_questions,
            lambda: "" if follower is None else str(follower.generation),
        )
    )

    def receive(delivery: Delivery) -> None:
        (cache if isinstance(delivery.message, CACHE_MESSAGES) else actor).receive(delivery)

    async def drained() -> None:
        while actor.held():  # noqa: ASYNC110 - the state is that of whichever actor lives after restarts
            await asyncio.sleep(DRAIN_POLL_S)

    service.on_drain(drained)
    if follower is not None:
        service.supervisor.start_task("index", follower.run)
    await service.bus.serve(inbox(service.role, service.instance), receive)
    await service.bus.serve(CANCEL_ALL, actor.receive)
    await service.ready(actor.status)
    await service.run()


def _reranker(config: RetrieverConfig) -> Reranker | None:
    return CrossEncoder.load(Path(config.reranker), threads=config.threads) if config.reranker else None


def _searcher(
    service: Service[RetrieverConfig],
    embedder: Embedder,
    vectors: QuestionVectors,
    reranker: Reranker | None,
) -> tuple[Searcher, IndexFollower]:
    """Brings the index up to date; says how far it is."""
    config, last_s = service.config, time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        service.loaded_steps = done
        if time.monotonic() - last_s >= PROGRESS_EVERY_S:
            last_s = time.monotonic()
            log.info("indexing", done_passages=done, total_passages=total)

    def waiting(holder: int) -> None:
        log.warning("index_awaited", holder_pid=holder, help="another process indexes the same folder")

    built = build_index(config.corpus, Path(config.state_dir), embedder, progress, waiting=waiting)
    for name, reason in built.skipped:
        log.warning("document_skipped", document=name, reason=reason)
    log.info(
        "indexed",
        passages=len(built.index),
        embedded=built.embedded,
        files=len(built.index.table.files),
        nearest=built.index.nearest.description,
    )
    searcher = Searcher(vectors, built.index, reranker)
    return searcher, IndexFollower(built.folder, built.generation, MODEL, searcher.replace_index)


def _warm_up(config: RetrieverConfig, embedder: Embedder) -> None:
    """The first forward pass is not to be a request's."""
    torch.set_num_threads(config.threads)
    embedder.embed([WARM_UP])


if __name__ == "__main__":
    run_service("retriever", RetrieverConfig, body)
