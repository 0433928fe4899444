"""The source of a passage, as readers are told of it: the document's name and the headings above it."""

from __future__ import annotations

HEADING_MARK = " § "


def passage_source(document: str, heading: str) -> str:
    """`heading` is "" where there is none."""
    return f"{document}{HEADING_MARK}{heading}" if heading else document


def document_of(source: str) -> str:
    """The document's name alone."""
    return source.partition(HEADING_MARK)[0]
