"""Choose how many tokens to ask a drafter for: as many as save more than verifying and asking costs. Pure."""

from __future__ import annotations

from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.position_chances import PositionChances
from shared.engine.scheduling.probes import Probes, Tries

PROBE_TOKENS = 1
UNKNOWN_PRICE = 0.1
"""Taken for the price of a token while nobody knows what steps cost."""
ASK_MESSAGE_US = 60
ASK_ROW_US = 25
"""CPU time of a decode worker for a message and its answer, and for each of the sequences that they are for:
the book, the codec, the offer. Measured with both: 76 to 110 µs for one sequence, 180 to 300 for eight."""
_LEARNING = 0.2  # of a request
_COMMON_LEARNING = 0.05  # of all requests of a worker


class DraftRecord:
    """The record of drafts: how often tokens were right, by position, and how often an answer was of use,
    which it is not where it comes too late or the engine leaves it out."""

    __slots__ = ("chances", "learning", "usable")

    def __init__(self, chances: PositionChances, usable: float, learning: float) -> None:
        self.chances = chances
        self.usable = usable
        self.learning = learning

    @classmethod
    def common(cls) -> DraftRecord:
        """Return that of all requests of a worker, of whose drafters nothing has been seen."""
        return cls(PositionChances(_COMMON_LEARNING), 1.0, _COMMON_LEARNING)

    def learn_use(self, usable: float) -> None:
        self.usable += self.learning * (usable - self.usable)


class DraftLength:
    """The draft length of one request, which begins with what others have seen until its first draft has come
    to something. `longest` is the configured one; 0 turns drafts off. `probes` are those of all requests."""

    def __init__(self, longest: int, common: DraftRecord, probes: Probes) -> None:
        self._longest = longest
        self._common = common
        self._own: DraftRecord | None = None
        self._tries = Tries(probes)

    def observe(self, proposed: int, accepted: int) -> None:
        """A draft of `proposed` tokens was verified; 0: none was."""
        if not proposed:
            return
        for record in self._records():
            record.chances.learn(proposed, accepted)
            record.learn_use(1.0)
        self._tries.judge(accepted)

    def observe_waste(self) -> None:
        """A draft was asked for and of no use: it came late, or not at all, or the engine left it out."""
        for record in self._records():
            record.learn_use(0.0)

    def next(
        self, limit: int, price: float = UNKNOWN_PRICE, ask_price: float = 0.0, num_sessions: int = 1
    ) -> int:
        """Tokens to ask for after this step; `limit` is what the batch of `num_sessions` leaves room for. In
        steps of the sequence, to verify a token costs `price`, and to ask `ask_price`."""
        most = min(limit, self._longest)
        if most <= 0:
            return 0
        if price < HIGHEST_PRICE:
            record = self._own or self._common
            bet = record.chances.bet(most, price)
            if bet.num_tokens and record.usable * bet.gain > ask_price:
                return bet.num_tokens
        return min(PROBE_TOKENS, most) if self._tries.take(price + ask_price, num_sessions) else 0

    def _records(self) -> tuple[DraftRecord, DraftRecord]:
        """Return its own and that of all, which both learn."""
        if self._own is None:
            self._own = DraftRecord(self._common.chances.copy(_LEARNING), self._common.usable, _LEARNING)
        return self._own, self._common


def ask_price(prices: DraftPrices, num_sequences: int) -> float:
    """Return what asking costs for one of so many sequences, in steps of it."""
    return (ASK_ROW_US + ASK_MESSAGE_US / max(1, num_sequences)) / prices.share_us
