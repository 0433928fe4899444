"""The content of a file of a corpus: a document, or several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shared.retrieval.documents.metadata import Pairs
from shared.retrieval.documents.passages import Passage, split_passages

MAX_DOCUMENT_PASSAGES = 100_000
"""A book has some thousands; a file that is all headings would have a million."""


@dataclass(frozen=True, slots=True)
class Document:
    """`name` is the path relative to the corpus, with forward slashes; of one line of a JSONL file also `#`
    and its id. `text` is what was read from it, which Markdown's rules divide into sections if `is_markdown`.
    `title` stands above all headings ("" = none). `page_starts`: the characters at which pages begin.
    `metadata` is what it says of itself for searches to be narrowed by (see metadata.py). `passages` are
    there where its reader has cut it already."""

    name: str
    text: str
    is_markdown: bool
    title: str = ""
    page_starts: tuple[int, ...] = ()
    metadata: Pairs = ()
    passages: tuple[Passage, ...] | None = field(default=None, compare=False, repr=False)

    def cut(self) -> tuple[Passage, ...]:
        """Return its passages. Raises Unreadable over MAX_DOCUMENT_PASSAGES."""
        if self.passages is not None:
            return self.passages
        passages = split_passages(self.text, markdown=self.is_markdown, title=self.title)
        if len(passages) > MAX_DOCUMENT_PASSAGES:
            reason = f"its {len(passages)} passages are over the limit of {MAX_DOCUMENT_PASSAGES}"
            raise Unreadable(reason, is_lasting=True)
        return tuple(passages)


class FilePlace(NamedTuple):
    """The place in a file that is read in parts: so many bytes and lines of it have been read."""

    byte: int
    lines: int


START = FilePlace(0, 0)


@dataclass(frozen=True, slots=True)
class FilePart:
    """The documents of a part of a file: one that is cut into passages, or lines, which are cut where they
    are new. `skipped`: the lines that are none, by their numbers, each with the reason; `rest`: where it goes
    on, None at its end."""

    documents: tuple[Document, ...]
    skipped: tuple[tuple[int, str], ...] = ()
    rest: FilePlace | None = None


class Unreadable(ValueError):
    """Why a file, or a line of one, is left out: a sentence about «it». `is_lasting` where a file that has
    not changed would be left out again."""

    def __init__(self, reason: str, *, is_lasting: bool = False) -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting
