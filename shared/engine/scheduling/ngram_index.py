"""Prompt lookup: the last tokens of a text stood in it before, and what followed them there may follow now.

Saxena 2023, "Prompt Lookup Decoding". Places are found as LZ77 coders find them (RFC 1951, section 4): every
two neighbouring tokens name a chain, and each place knows the one before it in its chain. So a token is taken
in by three reads and writes, and a text of any length needs at most 80 KB.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

SHORTEST_MATCH = 2
"""Tokens that have to be alike. After a single one anything follows."""
LONGEST_MATCH = 8
"""Places that are alike for longer are as good as each other: the latest is taken."""
WINDOW_TOKENS = 1 << 14
"""Places are remembered so far back."""
MAX_PLACES = 16
"""Looked at for one guess, the latest first; places of other pairs in the same chain count."""
_NUM_CHAINS = 1 << 12
_CHAIN_MASK = _NUM_CHAINS - 1
_WINDOW_MASK = WINDOW_TOKENS - 1
_NO_PLACES = array("i", [-1])


class Guess(NamedTuple):
    """A guess of what comes next, with the number of tokens before it that match those at its source."""

    token_ids: tuple[int, ...]
    match_tokens: int

    def cut(self, num_tokens: int) -> Guess:
        return Guess(self.token_ids[:num_tokens], self.match_tokens) if num_tokens > 0 else NO_GUESS


NO_GUESS = Guess((), 0)


class NgramIndex:
    """The places of one text, which only grows. It keeps none of the tokens: callers bring them each time."""

    __slots__ = ("_before", "_latest", "num_indexed")

    def __init__(self) -> None:
        self._latest = _NO_PLACES * _NUM_CHAINS  # by chain: where its last pair ends
        self._before = array("i", [-1])  # by place, modulo the window: the place before it in its chain
        self.num_indexed = 1  # a pair ends at the second token

    def index(self, tokens: Sequence[int], most: int) -> int:
        """Take in up to `most` more of `tokens`; returns how many that were."""
        latest, before = self._latest, self._before
        first = self.num_indexed
        last = min(len(tokens), first + most)
        for place in range(first, last):
            chain = hash((tokens[place - 1], tokens[place])) & _CHAIN_MASK
            if place < WINDOW_TOKENS:
                before.append(latest[chain])
            else:
                before[place & _WINDOW_MASK] = latest[chain]
            latest[chain] = place
        self.num_indexed = max(first, last)
        return max(0, last - first)

    def look_up(self, tokens: Sequence[int], most: int) -> Guess:
        """Return up to `most` tokens that followed the longest match among the latest places, of equals the
        latest.

        Where the match runs into what is guessed, the text repeats itself, and so does the guess.
        """
        end = len(tokens) - 1
        if end < SHORTEST_MATCH or most < 1:
            return NO_GUESS
        best, length = self._best_place(tokens, tokens, end)
        if not best:
            return NO_GUESS
        found = tuple(tokens[best + 1 : best + 1 + most])
        times = -(-most // len(found))
        return Guess((found * times)[:most], length)

    def look_up_in(self, text: Sequence[int], tokens: Sequence[int], most: int) -> Guess:
        """Return likewise what followed in `text`, the one that was taken in, where it is like the end of
        other `tokens`. A guess ends with it."""
        if len(tokens) < SHORTEST_MATCH or most < 1:
            return NO_GUESS
        best, length = self._best_place(text, tokens, len(text) - 1)
        return Guess(tuple(text[best + 1 : best + 1 + most]), length) if best else NO_GUESS

    def _best_place(self, text: Sequence[int], tokens: Sequence[int], before_place: int) -> tuple[int, int]:
        """Return where in `text` the longest match with the end of `tokens` ends, 0 for none; its length."""
        before, last, second = self._before, tokens[-1], tokens[-2]
        oldest = max(0, self.num_indexed - WINDOW_TOKENS)
        place = self._latest[hash((second, last)) & _CHAIN_MASK]
        best, best_length = 0, SHORTEST_MATCH - 1
        for _ in range(MAX_PLACES):
            if place <= oldest:
                break
            if place < before_place and text[place] == last and text[place - 1] == second:
                length = _match_tokens(text, place, tokens)
                if length > best_length:
                    best, best_length = place, length
                    if length == LONGEST_MATCH:
                        break
            place = before[place & _WINDOW_MASK]
        return best, best_length


def _match_tokens(text: Sequence[int], place: int, tokens: Sequence[int]) -> int:
    """Return how many tokens of `text` up to `place` are the last ones of `tokens`, where two of them are."""
    length, end = SHORTEST_MATCH, len(tokens) - 1
    most = min(LONGEST_MATCH, len(tokens), place + 1)
    while length < most and text[place - length] == tokens[end - length]:
        length += 1
    return length
