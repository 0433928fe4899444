"""Choose how many of the drafts that were offered are worth verifying."""

from __future__ import annotations

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.position_chances import PositionChances
from shared.engine.scheduling.probes import Probes
from shared.engine.sequence import LiveSequence

_LEARNING = 0.2  # of a sequence: a drafter that begins to be wrong is soon known
_COMMON_LEARNING = 0.05  # of all sequences, for those that come


class _OfferedRow:
    """The record of one sequence, which begins with what the last ones have seen."""

    __slots__ = ("chances", "probes")

    def __init__(self, common: PositionChances) -> None:
        self.chances = common.copy(_LEARNING)
        self.probes = Probes()


class OfferedDrafts:
    """Choose by what has come of offers alone, whoever has made them."""

    def __init__(self) -> None:
        self._common = PositionChances(_COMMON_LEARNING)
        self._rows: dict[str, _OfferedRow] = {}

    def choose(self, sequence: LiveSequence, most: int, prices: DraftPrices | None) -> tuple[int, ...]:
        """Take the drafts of a sequence: up to `most`, each right often enough, with all before it, to save
        more than it costs; all of these while it is not known what a token costs."""
        drafts, sequence.drafts = sequence.drafts[: max(0, most)], ()
        if not drafts:
            return ()
        row = self._rows.get(sequence.key)
        if row is None:
            row = self._rows[sequence.key] = _OfferedRow(self._common)
        if prices is None:
            return drafts
        price = prices.of_token(sequence.num_computed)
        if price >= HIGHEST_PRICE:
            return ()
        count = row.chances.bet(len(drafts), price).num_tokens
        if not count and row.probes.is_due():
            count = 1
        return drafts[:count]

    def judge(self, key: str, proposed: int, accepted: int) -> None:
        """Learn from a step that verified `proposed` tokens."""
        row = self._rows[key]
        row.chances.learn(proposed, accepted)
        self._common.learn(proposed, accepted)
        if accepted:
            row.probes.succeed()

    def forget(self, key: str) -> None:
        """The sequence is gone, or its text has changed."""
        self._rows.pop(key, None)
