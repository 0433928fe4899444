"""Draft for the sequences that nobody has drafted for: from their text, or, where that promises more, by a
draft head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.head_drafts import HeadDrafts, HeadWish
from shared.engine.scheduling.ngram_drafts import NgramDrafts
from shared.engine.scheduling.ngram_index import Guess
from shared.engine.sequence import LiveSequence


class Drafts(NamedTuple):
    """The drafts of one sequence: behind a match of `match_tokens` where they were looked up, each with its
    confidence where a head has made them."""

    token_ids: tuple[int, ...] = ()
    match_tokens: int = 0
    confidences: tuple[float, ...] = ()

    def cut(self, num_tokens: int) -> Drafts:
        if num_tokens >= len(self.token_ids):
            return self
        if num_tokens < 1:
            return NO_DRAFTS
        return Drafts(self.token_ids[:num_tokens], self.match_tokens, self.confidences[:num_tokens])


NO_DRAFTS = Drafts()


class OwnDrafts:
    """`heads`: the drafts of a draft head, None where there is none."""

    def __init__(self, lookups: NgramDrafts, heads: HeadDrafts | None) -> None:
        self._lookups = lookups
        self._heads = heads

    def draft(
        self, sequences: Sequence[LiveSequence], budget: int, prices: DraftPrices | None
    ) -> list[Drafts]:
        """Draft up to `budget` tokens for all of them together, in a step in which tokens cost `prices`."""
        looks_up = self._lookups.begin_step(prices)
        if not looks_up and self._heads is None:
            return [NO_DRAFTS] * len(sequences)
        found: list[Drafts] = []
        for sequence in sequences:
            most = min(sequence.draw_limit - 1, budget)
            drafts = Drafts(*self._lookups.draft(sequence, most)) if looks_up else NO_DRAFTS
            budget -= len(drafts.token_ids)
            found.append(drafts)
        if self._heads is not None and self._heads.begin_step(prices):
            self._ask(self._heads, sequences, found, budget)
        return found

    def _ask(
        self, heads: HeadDrafts, sequences: Sequence[LiveSequence], found: list[Drafts], budget: int
    ) -> None:
        """Replace what was found where the head promises more."""
        gains = [self._gain(*pair) for pair in zip(sequences, found, strict=True)]
        wishes = [
            HeadWish(sequence, min(sequence.draw_limit - 1, budget + len(drafts.token_ids)), gain)
            for sequence, drafts, gain in zip(sequences, found, gains, strict=True)
        ]
        requests = heads.requests(wishes)
        places = [place for place, request in enumerate(requests) if request is not None]
        if not places:
            return
        asked = [(sequences[place], request) for place in places if (request := requests[place]) is not None]
        num_taken = sum(len(drafts.token_ids) for drafts in found)
        for place, offer in zip(places, heads.ask(asked, num_taken), strict=True):
            if gains[place] and offer.gain <= gains[place]:
                continue
            freed = len(found[place].token_ids)
            found[place] = Drafts(offer.token_ids, 0, offer.confidences).cut(budget + freed)
            budget += freed - len(found[place].token_ids)

    def _gain(self, sequence: LiveSequence, found: Drafts) -> float:
        """Return the steps that what was looked up promises to save."""
        if not found.token_ids:
            return 0.0
        return self._lookups.gain(sequence, Guess(found.token_ids, found.match_tokens))
