"""Choose the reranker of a retriever."""

from __future__ import annotations

from pathlib import Path

import structlog

from services.retriever.config import RetrieverConfig
from shared.retrieval.encoders.cross_encoder import CrossEncoder
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.late_interaction import NAME, LateInteraction
from shared.retrieval.encoders.rerank import Reranker

AUTO = "auto"

log = structlog.get_logger()


def choose_reranker(config: RetrieverConfig, embedder: Embedder) -> Reranker | None:
    """Raises NotFound, TooLarge or InvalidRequest for a folder that holds no cross-encoder."""
    if config.reranker == AUTO and not embedder.is_native:
        log.info("not_reranked", reason="the encoder's kernels do not run here: it would take too long")
        return None
    if config.reranker in (AUTO, NAME):
        return LateInteraction(embedder, max_bytes=config.token_states_mb << 20, threads=config.threads)
    return CrossEncoder.load(Path(config.reranker), threads=config.threads) if config.reranker else None
