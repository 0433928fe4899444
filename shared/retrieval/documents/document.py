"""The content of a file of a corpus: a document, or several."""

from __future__ import annotations

from dataclasses import dataclass

from shared.retrieval.documents.metadata import Pairs


@dataclass(frozen=True, slots=True)
class Document:
    """`name` is the path relative to the corpus, with forward slashes; of one line of a JSONL file also `#`
    and its id. `text` is what was read from it, which Markdown's rules divide into sections if `is_markdown`.
    `title` stands above all headings ("" = none). `page_starts`: the characters at which pages begin.
    `metadata` is what it says of itself for searches to be narrowed by (see metadata.py)."""

    name: str
    text: str
    is_markdown: bool
    title: str = ""
    page_starts: tuple[int, ...] = ()
    metadata: Pairs = ()


class Unreadable(ValueError):
    """Why a file, or a line of one, is left out: a sentence about «it»."""
