"""Choose how many of the drafts that were offered are worth verifying."""

from __future__ import annotations

from typing import NamedTuple

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.position_chances import PositionChances
from shared.engine.scheduling.probes import Probes, Tries
from shared.engine.sequence import LiveSequence

UNKNOWN_TOKENS = 8
"""The most that are verified, of all sequences, before it is known what that costs."""
_LEARNING = 0.2  # of a sequence: a drafter that begins to be wrong is soon known
_COMMON_LEARNING = 0.05  # of all sequences, for those that come


class _OfferRow(NamedTuple):
    """The record of one sequence."""

    chances: PositionChances
    tries: Tries


class OfferedDrafts:
    """Choose by what has come of offers alone, whoever has made them. A sequence begins with what others have
    seen until it is first drafted for."""

    def __init__(self) -> None:
        self._common = PositionChances(_COMMON_LEARNING)
        self._rows: dict[str, _OfferRow] = {}
        self._probes = Probes()
        self._unknown_tokens = UNKNOWN_TOKENS  # that are left

    def begin_step(self) -> None:
        """A step is planned."""
        self._probes.begin_step()

    def choose(self, sequence: LiveSequence, most: int, prices: DraftPrices | None) -> tuple[int, ...]:
        """Take the drafts of a sequence: up to `most`, each right often enough, with all before it, to save
        more than it costs. One is verified now and then where none pays: what drafters, and rows, were
        believed to be may be long past. While it is not known what a token costs, UNKNOWN_TOKENS are taken
        in all."""
        drafts, sequence.drafts = sequence.drafts[: max(0, most)], ()
        if not drafts:
            return ()
        row = self._rows.get(sequence.key) or self._new_row()
        if prices is None:
            count = min(len(drafts), self._unknown_tokens)
            self._unknown_tokens -= count
        else:
            price = prices.of_token(sequence.num_computed)
            count = 0 if price >= HIGHEST_PRICE else row.chances.bet(len(drafts), price).num_tokens
            if not count and row.tries.take(price, prices.sequences):
                count = 1
        if count:
            self._rows[sequence.key] = row
        return drafts[:count]

    def _new_row(self) -> _OfferRow:
        return _OfferRow(self._common.copy(_LEARNING), Tries(self._probes))

    def judge(self, key: str, proposed: int, accepted: int) -> None:
        """Learn from a step that verified `proposed` tokens."""
        row = self._rows[key]
        row.chances.learn(proposed, accepted)
        self._common.learn(proposed, accepted)
        row.tries.judge(accepted)

    def forget(self, key: str) -> None:
        """The sequence is gone, or its text has changed."""
        self._rows.pop(key, None)
