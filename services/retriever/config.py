"""Configuration of the retriever service."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config.fields import PathRule, ServiceConfig, field_of
from shared.config.named_corpus import NamedCorpus, read_named_corpora


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverConfig(ServiceConfig):
    corpus: tuple[str, ...] = field_of(
        (),
        help="corpora, each [NAME[@TENANT+TENANT]=]PATH: a folder of documents, one file, or FOLDER/*.md; "
        "empty = no retrieval",
        path=PathRule.BEHIND_NAME,
    )
    index_wait_s: float = field_of(
        60.0,
        help="how long corpora that can be searched wait at the start for those that are still being indexed",
        minimum=0.0,
        maximum=86400.0,
    )
    state_dir: str = field_of(
        ".penstock", help="folder that keeps the index between runs", path=PathRule.ALWAYS
    )
    reranker: str = field_of(
        "auto",
        help="late-interaction, the folder of a Hugging Face cross-encoder (BERT, RoBERTa, XLM-R), "
        "auto = late-interaction where the encoder's kernels run and else none, or empty = none",
        path=PathRule.IF_THERE,
    )
    token_states_mb: int = field_of(
        32,
        help="MiB for what late interaction knows of passages lately seen; 0 = nothing is kept",
        minimum=0,
        maximum=1 << 14,
    )
    max_queued: int = field_of(
        256, help="questions that may wait; more are refused as overloaded", minimum=1, maximum=1 << 16
    )
    batch: int = field_of(16, help="questions embedded together", minimum=1, maximum=256)
    batch_bytes: int = field_of(
        2048,
        help="bytes of questions embedded together; one that is longer is embedded by itself",
        minimum=1,
        maximum=1 << 20,
    )
    question_vectors_mb: int = field_of(
        8,
        help="MiB for the vectors of questions, which may be asked again; 0 = none are kept",
        minimum=0,
        maximum=1 << 14,
    )
    weight_cache_mb: int = field_of(
        32768,
        help="disk for packed weights that processes of this host share, in MiB; 0 = each packs its own",
        minimum=0,
        maximum=1 << 24,
    )
    weight_cache_dir: str = field_of(
        "",
        help="directory for them, on disk or tmpfs; empty = penstock/weights in the user's cache directory",
    )
    soft_share: float = field_of(
        0.7, help="share of the time left after which a question degrades", minimum=0.01, maximum=1.0
    )
    default_budget_s: float = field_of(
        2.0, help="time for a question that came without a deadline", minimum=0.001, maximum=60.0
    )
    cache_mb: int = field_of(
        64, help="MiB for answers that are kept; 0 = none are", minimum=0, maximum=1 << 16
    )
    cache_entries: int = field_of(4096, help="answers that are kept at most", minimum=1, maximum=1 << 17)
    cache_ttl_s: float = field_of(3600.0, help="how long an answer is kept", minimum=1.0, maximum=86400.0)
    cache_min_similarity: float = field_of(
        0.95,
        help="how similar a question has to be for the answer to another one, where its request does not say",
        minimum=0.5,
        maximum=1.0,
    )
    threads: int = field_of(
        1, help="threads of the embedding model and of the reranker", minimum=1, maximum=256
    )

    def named_corpora(self) -> tuple[NamedCorpus, ...]:
        """Raises InvalidRequest for one that is said in a wrong way."""
        return read_named_corpora(self.corpus)
