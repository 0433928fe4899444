"""A corpus as it is now: the files that have changed are read and cut into passages, the others are as they
were."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from shared.files.file_signature import file_signature
from shared.retrieval.documents.corpus import CorpusReader
from shared.retrieval.documents.document import Document
from shared.retrieval.documents.passages import MAX_WORDS, MIN_WORDS, OVERLAP_WORDS
from shared.retrieval.documents.seen_files import SeenFile, settled
from shared.retrieval.index.passage_table import IndexedFile, PassageTable
from shared.retrieval.index.reading_progress import ReadingCount, ReadingProgress
from shared.retrieval.index.term_counts import Rows

SPLITTER = f"3/{MIN_WORDS}/{MAX_WORDS}/{OVERLAP_WORDS}"
"""The way in which files are read and cut: another one where the same file makes other documents or
passages."""

NO_TEXT = "it has no text"
ReadPart = IndexedFile | range
"""A document that was cut now, or documents of the table before."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`table` is `before` itself where no document has changed. `origin` [passages]: which row each was
    before, -1 for those of documents that were cut anew. `seen` has all files in their order; `skipped` is
    what is in no passage, each with the reason."""

    table: PassageTable
    origin: Rows
    seen: list[SeenFile]
    skipped: tuple[tuple[str, str], ...]


def read_corpus(
    corpus: str,
    before: PassageTable,
    seen: Sequence[SeenFile],
    clock_ns: Callable[[], int],
    tell: ReadingProgress = lambda _: None,
) -> Reading:
    """`seen`: what the documents of `before` were read of, by `clock_ns`, as file systems tell the time.
    Raises NotFound and TooLarge (see corpus)."""
    with CorpusReader(corpus) as reader:
        return _read_files(reader, before, seen, clock_ns, tell)


def _read_files(
    reader: CorpusReader,
    before: PassageTable,
    seen: Sequence[SeenFile],
    clock_ns: Callable[[], int],
    tell: ReadingProgress,
) -> Reading:
    known = _documents_of(seen, before)
    parts: list[ReadPart] = []
    now: list[SeenFile] = []
    count = ReadingCount(_sizes_to_read(reader, known), tell)
    for path in reader.files:
        count.begin(path)
        name, read_ns, signature = reader.name_of(path), clock_ns(), file_signature(path)
        file, documents = known.get(name, (None, range(0)))
        if file is not None and signature is not None and file.signature == signature:
            reader.pass_over(file.summary)
            parts.append(documents)
            now.append(file)
            count.end()
            continue
        cutter = _Cutter(before, documents, parts)

        def take(document: Document, cut: Callable[[Document], None] = cutter.take) -> None:
            cut(document)
            count.add_document(len(document.text))

        summary = reader.read(path, take, count.tell)
        count.end()
        certain = summary.is_whole and file_signature(path) == signature
        now.append(SeenFile(name, settled(signature, read_ns) if certain else None, summary))
    skipped = reader.skipped()
    table, origin = _joined(before, parts)
    return Reading(table, origin, now, (*skipped, *((name, NO_TEXT) for name in table.without_text())))


def _sizes_to_read(reader: CorpusReader, known: Mapping[str, tuple[SeenFile, range]]) -> dict[Path, int]:
    """Return the files that have changed, as they are now, with their sizes."""
    sizes = {}
    for path in reader.files:
        file, signature = known.get(reader.name_of(path), (None, None))[0], file_signature(path)
        if file is None or signature is None or file.signature != signature:
            sizes[path] = 0 if signature is None else signature[-1]
    return sizes


def _documents_of(seen: Sequence[SeenFile], before: PassageTable) -> dict[str, tuple[SeenFile, range]]:
    """Each file with the numbers of its documents; none where they are not those of the table."""
    known: dict[str, tuple[SeenFile, range]] = {}
    begin = 0
    for file in seen:
        known[file.name] = file, range(begin, begin + file.summary.documents)
        begin += file.summary.documents
    return known if begin == len(before.files) else {}


class _Cutter:
    """Takes the documents of one file, those of them that are as they were from the table before."""

    def __init__(self, before: PassageTable, documents: range, parts: list[ReadPart]) -> None:
        self._before = before
        self._numbers = {before.files[number].name: number for number in documents}
        self._parts = parts

    def take(self, document: Document) -> None:
        key = _key(document)
        number = self._numbers.pop(document.name, None)
        if number is not None:
            was = self._before.files[number]
            if (was.key, was.page_starts, was.metadata) == (key, document.page_starts, document.metadata):
                self._parts.append(range(number, number + 1))
                return
        passages = document.cut()
        self._parts.append(IndexedFile(document.name, key, passages, document.page_starts, document.metadata))


def _key(document: Document) -> str:
    kind = "md" if document.is_markdown else "txt"
    told = f"{SPLITTER}\0{kind}\0{document.title}\0{document.text}"
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()


def _joined(before: PassageTable, parts: Sequence[ReadPart]) -> tuple[PassageTable, Rows]:
    cut = PassageTable.of_files([part for part in parts if isinstance(part, IndexedFile)])
    pieces: list[tuple[PassageTable, range]] = []
    origins: list[Rows] = [np.zeros(0, np.int64)]
    taken = 0
    for is_cut, group in groupby(parts, lambda part: isinstance(part, IndexedFile)):
        if is_cut:
            count = sum(1 for _ in group)
            documents = range(taken, taken + count)
            taken += count
            pieces.append((cut, documents))
            origins.append(np.full(len(cut.rows_of(documents)), -1, np.int64))
        else:
            for documents in filter(None, _runs(part for part in group if isinstance(part, range))):
                pieces.append((before, documents))
                rows = before.rows_of(documents)
                origins.append(np.arange(rows.start, rows.stop))
    origin = np.concatenate(origins)
    if pieces == [(before, range(len(before.files)))]:
        return before, origin
    return PassageTable.of_parts(pieces), origin


def _runs(ranges: Iterable[range]) -> Iterator[range]:
    """Return those that follow each other as one."""
    run = range(0)
    for one in ranges:
        if run.stop == one.start:
            run = range(run.start, one.stop)
        else:
            yield run
            run = one
    yield run
