"""Clients that are not well-behaved or ask for what is slow: what they do, how much, and their share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Conduct(StrEnum):
    WELL = "well"
    CANCEL = "cancel"
    """The client cancels after so many tokens; 0 is as soon as the request is on its way."""
    DISCONNECT = "disconnect"
    """The connection is cut after so many tokens, without a word."""
    STALL = "stall"
    """The client stops to read after so many tokens, and leaves the connection open."""
    OVERSIZED = "oversized"
    """The prompt has so many tokens, which no server should take."""
    HURRIED = "hurried"
    """The deadline is so many milliseconds, too short for an answer."""
    SCHEMA = "schema"
    """Answers fit a JSON schema of so many optional properties, which no server has met before."""
    RETRIEVE = "retrieve"
    """The prompt waits for so many passages, also where the server is under pressure."""


AMOUNTS = {
    Conduct.CANCEL: 8,
    Conduct.DISCONNECT: 8,
    Conduct.STALL: 8,
    Conduct.OVERSIZED: 200_000,
    Conduct.HURRIED: 50,
    Conduct.SCHEMA: 100,
    Conduct.RETRIEVE: 16,
}
"""The amounts where nobody says one."""
MAX_AMOUNT = 1_000_000
"""The most tokens or milliseconds of such a client."""
MAX_AMOUNTS = {Conduct.SCHEMA: 10_000, Conduct.RETRIEVE: 16}
"""The most properties, and the most passages that a request can ask for."""
GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class ConductShare:
    conduct: Conduct
    share: float
    amount: int

    @classmethod
    def read(cls, conduct: Conduct, text: str) -> Self:
        """Read "5%" or "5%@20". Raises ValueError, which says what is possible."""
        wrong = ValueError(f"{text!r} is no share: write 5%, or SHARE@AMOUNT as 5%@{AMOUNTS[conduct]}")
        share, at, amount = text.partition("@")
        if not share.endswith("%") or (at and not (amount.isascii() and amount.isdigit())):
            raise wrong
        try:
            percent = float(share[:-1])
        except ValueError:
            raise wrong from None
        count = int(amount) if at else AMOUNTS[conduct]
        most = MAX_AMOUNTS.get(conduct, MAX_AMOUNT)
        if count > most:
            raise ValueError(f"{text!r} is no share: AMOUNT is {most:,} at most")
        if not 0 <= percent <= 100:
            raise wrong
        return cls(conduct, percent / 100, count)


def spread_conduct(shares: Sequence[ConductShare], number: int, offset: float) -> tuple[Conduct, int]:
    """Return what the client of that number does, and after how much.

    Among any clients in a row each conduct has its share, to one client or two: a load is short, and chance
    would give it others. Numbers take places by the golden ratio, as in a sequence of Kronecker, which begins
    at `offset`, from 0 to 1.
    """
    place = (offset + number * GOLDEN_RATIO) % 1.0
    for each in shares:
        if place < each.share:
            return each.conduct, each.amount
        place -= each.share
    return Conduct.WELL, 0
