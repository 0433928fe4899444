"""Show the sentences of an answer with what supports them."""

from __future__ import annotations

from collections.abc import Mapping

from protos.penstock.v1 import inference_pb2 as pb

MAX_QUOTED_CHARS = 60
"""A longer sentence loses its middle."""


def cited_line(citation: pb.Citation, answer: str, passages: Mapping[int, pb.RetrievedPassage]) -> str:
    """Say which of `passages`, by their places in the prompt, supports a sentence of the answer."""
    said = _quoted(answer[citation.start : citation.end])
    passage = passages.get(citation.prompt_place)
    if passage is None:
        return f"no passage supports {said}"
    words = _quoted(passage.text[citation.passage_start : citation.passage_end])
    return f"[{citation.prompt_place}] supports {said}" + ("" if words == said else f", by {words}")


def citation_fields(citation: pb.Citation) -> dict[str, object]:
    return {
        "start": citation.start,
        "end": citation.end,
        "prompt_place": citation.prompt_place,
        "passage_start": citation.passage_start,
        "passage_end": citation.passage_end,
        "support": citation.support,
    }


def _quoted(text: str) -> str:
    """Put it into one line."""
    line = " ".join(text.split())
    if len(line) > MAX_QUOTED_CHARS:
        line = f"{line[: MAX_QUOTED_CHARS // 2]} … {line[-MAX_QUOTED_CHARS // 2 :]}"
    return f"\u201c{line}\u201d"
