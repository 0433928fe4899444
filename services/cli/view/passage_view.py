"""A passage as commands show it: its head in a terminal, its fields in JSON."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb


def passage_head(passage: pb.RetrievedPassage) -> str:
    """Say where a passage is from, and how well it fits."""
    page = f", page {passage.page}" if passage.page else ""
    return f"{' '.join(passage.source.splitlines())}{page} ({passage.score:.2f})"


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
