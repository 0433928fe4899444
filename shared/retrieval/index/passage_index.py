"""Passages with what finds them: by meaning with faiss, by words with BM25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.retrieval.documents.metadata import Pairs, told_metadata
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.lexical import Allowed, LexicalIndex, Rows, Scores
from shared.retrieval.index.nearest import NearestVectors
from shared.retrieval.index.passage_table import IndexedFile, PassageTable
from shared.text.passage_source import passage_source


@dataclass(frozen=True, slots=True)
class Hit:
    """`source` is the file and the headings; `score` what it was found by: the cosine with the query, or
    BM25's. The passage is `row` of the index; it was made of the characters `start` to `end` of the
    document's text, which begin on `page` (0: the document has no pages)."""

    source: str
    text: str
    score: float
    row: int
    start: int
    end: int
    page: int


class PassageIndex:
    """`vectors` [passages, dimensions] are of length 1, in the order of the files' passages."""

    def __init__(
        self,
        files: Sequence[IndexedFile] | PassageTable,
        vectors: Vectors,
        lexical: LexicalIndex | None = None,
        nearest: NearestVectors | None = None,
    ) -> None:
        """Make what is not given."""
        self.table = files if isinstance(files, PassageTable) else PassageTable.of_files(files)
        self.vectors = vectors
        if len(self.table) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors for {len(self.table)} passages")
        self.lexical = LexicalIndex.build(embedded_texts(self.table)) if lexical is None else lexical
        self.nearest = NearestVectors.build(vectors) if nearest is None else nearest

    def __len__(self) -> int:
        return len(self.table)

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Search, for each row of `queries` [n, dimensions], the best k passages by meaning, best first."""
        scores, rows = self.search_rows(queries, k, allowed)
        return [
            [self.hit(int(row), float(score)) for row, score in zip(found, of, strict=True) if row >= 0]
            for found, of in zip(rows, scores, strict=True)
        ]

    def search_rows(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> tuple[Scores, Rows]:
        """Their cosines and rows [n, at most k], best first, -1 where there are no more."""
        return self.nearest.search(queries, k, allowed)

    def hit(self, row: int, score: float) -> Hit:
        """The passage of this row, as found with this score."""
        passage, file = self.table.passage(row), self.table.file_of(row)
        source = passage_source(file.name, passage.heading)
        page = file.page_at(passage.start)
        return Hit(source, passage.text, score, row, passage.start, passage.end, page)

    def metadata_of(self, row: int) -> Pairs:
        """Return what a client is told of its document's."""
        file = self.table.file_of(row)
        return told_metadata(file.name, file.metadata)


def embedded_texts(table: PassageTable) -> list[str]:
    """Return what the vectors and terms of its passages are made of."""
    return [table.passage(row).embedded_text for row in range(len(table))]
