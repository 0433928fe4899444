"""A guesser of tokens from the hidden states of a sequence's last row, as the scheduler asks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_BINS = 16
"""The parts of equal width into which a confidence from 0 to 1 falls."""

TapRows = NDArray[np.float32]
"""[slots, hidden states of a row, one behind the other]"""


class DraftRequest(NamedTuple):
    """One row to draft for. A token is guessed where it is right, with all before it, with a chance of at
    least `floor`, and another one is tried behind it where that chance is at least `need`."""

    slot: int  # of its hidden states in `TapRows`
    token_id: int  # the last token: what was drawn from that row
    position: int  # of the first guessed token
    temperature: float
    seed: int
    length: int  # tokens at most, at least 1
    floor: float = 0.0
    need: float = 0.0
    trust: float = 1.0  # times the chances are what they are for this row


class HeadDraft(NamedTuple):
    """Guessed tokens, each with its confidence from 0 to 1; `steps` tokens were computed for that."""

    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]
    steps: int


class HeadModel(Protocol):
    """A draft head. What it guesses for one row does not depend on the rows beside it."""

    @property
    def tap_width(self) -> int:
        """Return how many numbers a row of `TapRows` has."""
        ...

    def draft(
        self, taps: TapRows, requests: Sequence[DraftRequest], chances: Sequence[float]
    ) -> list[HeadDraft]:
        """Guess for each of `requests`. `chances` [CONFIDENCE_BINS]: how often a token is right, by its
        confidence."""
        ...


def bin_of(confidence: float) -> int:
    """Return the place of a confidence among `chances`."""
    return min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
