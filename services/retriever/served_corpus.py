"""One corpus of a retriever: what is searched of it now, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from shared.config.named_corpus import DEFAULT_CORPUS, NamedCorpus
from shared.messages import MAX_REPORTED_CHARS, CorpusReport
from shared.retrieval.index.metadata_masks import MetadataMasks
from shared.retrieval.index.passage_index import PassageIndex
from shared.telemetry import metrics


@dataclass(frozen=True, slots=True)
class SearchedIndex:
    """A generation of a corpus' index, with what belongs to it alone. `digest` is that of its manifest, ""
    for one that is on no disk."""

    index: PassageIndex
    generation: int
    digest: str
    masks: MetadataMasks


class ServedCorpus:
    """Written by whoever indexes and follows it; read from any thread."""

    def __init__(self, named: NamedCorpus) -> None:
        self.named = named
        self.trouble = ""
        """Why there is no index, or none newer."""
        self.searched: SearchedIndex | None = None
        """Replaced as a whole; never None again."""
        self._count()

    @classmethod
    def of_index(cls, index: PassageIndex) -> Self:
        """One that is searched at once and by everybody."""
        corpus = cls(NamedCorpus(DEFAULT_CORPUS, ""))
        corpus.replace_index(index, 1)
        return corpus

    @property
    def generation(self) -> int:
        """0: there is none."""
        return 0 if self.searched is None else self.searched.generation

    @property
    def digest(self) -> str:
        """Return the digest of the manifest of what is searched; "" where there is none."""
        return "" if self.searched is None else self.searched.digest

    @property
    def state(self) -> str:
        """Another one for every index of every corpus of this retriever; "" where there is none."""
        searched = self.searched
        return "" if searched is None else f"{self.named.name}/{searched.digest or searched.generation}"

    @property
    def report(self) -> CorpusReport:
        searched = self.searched
        passages, generation = (0, 0) if searched is None else (len(searched.index), searched.generation)
        return CorpusReport(self.named.name, passages, generation, self.trouble[:MAX_REPORTED_CHARS])

    def replace_index(self, index: PassageIndex, generation: int, digest: str = "") -> None:
        """Replace the index from the next batch on, without trouble."""
        self.searched = SearchedIndex(index, generation, digest, MetadataMasks(index.table))
        self.trouble = ""
        self._count()

    def report_trouble(self, trouble: str) -> None:
        self.trouble = trouble
        self._count()

    def _count(self) -> None:
        name, searched = self.named.name, self.searched
        metrics.CORPUS_PASSAGES.labels(corpus=name).set(0 if searched is None else len(searched.index))
        metrics.CORPUS_TROUBLED.labels(corpus=name).set(bool(self.trouble))
