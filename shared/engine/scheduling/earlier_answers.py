"""Keep what was answered lately to those who share it, and draft from it: agents are answered much alike.

Oliaro et al. 2024, "SuffixDecoding", keep the answers to a task in a suffix tree. Here they are one text, in
which the latest places of a match are found as in a sequence's own (`NgramIndex`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from shared.engine.scheduling.match_chances import MatchChances
from shared.engine.scheduling.ngram_index import (
    LONGEST_MATCH,
    WINDOW_TOKENS,
    Guess,
    NgramIndex,
)

END_OF_ANSWER = -1
"""Stands between two answers. It is no token, so that no match and no guess reaches over it."""
STARTING_CHANCES = (0.05, 0.15, 0.25, 0.4, 0.5, 0.6, 0.65)
"""The chance that a token is right which followed a match of 2, 3, … tokens in another answer of its scope,
while these have not shown more."""
LEAST_ANSWER_TOKENS = 8
"""Shorter answers are not kept: they are drawn sooner than found."""


class AnswerText:
    """The latest answers within one scope, up to two windows of tokens: 208 KB with their index."""

    __slots__ = ("_lookup", "_tokens", "chances")

    def __init__(self) -> None:
        self.chances = MatchChances(STARTING_CHANCES)
        self._tokens = array("i")
        self._lookup = NgramIndex()

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, answer: Sequence[int]) -> None:
        """Take in the end of an answer, at most a window of it; what is oldest gives way."""
        kept = answer[-(WINDOW_TOKENS - 1) :]
        if len(self._tokens) + len(kept) + 1 > 2 * WINDOW_TOKENS:
            self._tokens = self._tokens[-WINDOW_TOKENS:]
            self._lookup = NgramIndex()
        self._tokens.extend(kept)
        self._tokens.append(END_OF_ANSWER)

    def index(self, most: int) -> int:
        """Make up to `most` more tokens known to `look_up`; returns how many that were."""
        return self._lookup.index(self._tokens, most)

    def look_up(self, tokens: Sequence[int], most: int) -> Guess:
        """Return up to `most` tokens that followed the longest match with the end of `tokens`."""
        guess = self._lookup.look_up_in(self._tokens, tokens, most)
        ids = guess.token_ids
        return guess.cut(ids.index(END_OF_ANSWER)) if END_OF_ANSWER in ids else guess


class EarlierAnswers:
    """The answers of up to `max_scopes` scopes; those of the least recently answered one give way."""

    def __init__(self, max_scopes: int) -> None:
        self._max_scopes = max_scopes
        self._texts: OrderedDict[str, AnswerText] = OrderedDict()

    def of(self, scope: str) -> AnswerText | None:
        return self._texts.get(scope)

    def keep(self, scope: str, tokens: Sequence[int], prompt_len: int) -> None:
        """Keep the answer of a sequence that has ended, with the end of the prompt that led to it."""
        if not self._max_scopes or len(tokens) - prompt_len < LEAST_ANSWER_TOKENS:
            return
        text = self._texts.get(scope)
        if text is None:
            if len(self._texts) == self._max_scopes:
                self._texts.popitem(last=False)
            text = self._texts[scope] = AnswerText()
        self._texts.move_to_end(scope)
        text.append(tokens[max(0, prompt_len - LONGEST_MATCH) :])
