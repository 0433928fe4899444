"""The rows of text that a session gets from the detokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shared.messages import Mark, Text
from shared.sampling.parameters import TokenLogprob


class TextRow(NamedTuple):
    """One row of a Text message: a tuple, so that columns become rows in one call."""

    epoch: int
    position: int
    token_ids: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[TokenLogprob, ...]
    marks: tuple[Mark, ...]


def rows_by_request(text: Text) -> Iterator[tuple[str, TextRow]]:
    columns = (
        text.epochs,
        text.positions,
        text.token_ids,
        text.texts,
        text.finish,
        text.logprobs,
        text.marks,
    )
    return zip(text.request_ids, map(TextRow._make, zip(*columns, strict=True)), strict=True)
