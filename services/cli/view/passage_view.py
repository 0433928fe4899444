"""A passage as commands show it: its head in a terminal, its fields in JSON."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def passage_head(passage: pb.RetrievedPassage) -> str:
    """Say where a passage is from, and how well it fits."""
    page = f", page {passage.page}" if passage.page else ""
    return f"{printable_text(passage.source)}{page} ({passage.score:.2f})"


def passage_fields(passage: pb.RetrievedPassage) -> dict[str, object]:
    """But for its place in a prompt."""
    return {
        "source": passage.source,
        "text": passage.text,
        "score": passage.score,
        "start": passage.start,
        "end": passage.end,
        "page": passage.page,
        "metadata": dict(passage.metadata),
    }


def printable_text(text: str) -> str:
    """Documents may hold what a terminal obeys."""
    return "".join(each if each.isprintable() or each == "\t" else REPLACEMENT for each in text)
