"""What a session gets of the text that the detokenizer sends."""

from __future__ import annotations

from dataclasses import dataclass

from shared.messages import Mark
from shared.sampling import TokenLogprob


@dataclass(frozen=True, slots=True)
class TextRow:
    """One row of a Text message."""

    epoch: int
    position: int
    token_ids: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[TokenLogprob, ...]
    marks: tuple[Mark, ...]
