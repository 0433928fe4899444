"""Keep the books of one key in one gateway, and say which gateway's books are the fleet's.

The gateway whose name and the key have the highest hash together keeps the key (rendezvous hashing, Thaler
and Ravishankar 1998): all gateways that know of each other find the same one, and one that comes or goes
moves no other gateway's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from services.gateway.keys.rate_bucket import MINUTE_S
from services.gateway.keys.rate_limits import KeyLedger, Levels, LimitReached


@dataclass(frozen=True, slots=True)
class KeyDoubt:
    """Gateways that may have counted a key were taken for dead, as (name, incarnation); `levels` and `taken`
    are those of our ledger before the first of them."""

    levels: Levels
    taken: Levels
    since_s: float
    keepers: frozenset[tuple[str, int | None]] = frozenset()


@dataclass(slots=True, eq=False)
class KeyAccount:
    """One key here. `ledger` counts for the whole fleet while this gateway keeps the key (`kept`)."""

    key_hash: str
    ledger: KeyLedger
    kept: bool = False
    heard: set[str] = field(default_factory=set)
    """The other gateways whose live requests the ledger has."""
    heard_s: float = 0.0
    rival: str = ""
    """The gateway that has asked to keep the key, which our view of the fleet may not know of yet."""
    doubt: KeyDoubt | None = None
    """Set when a keeper is taken for dead, until it has the key again."""
    returned: tuple[str, KeyDoubt] | None = None
    """The keeper that was alive and has the key again, until it is heard to count."""
    own_uses: set[int] = field(default_factory=set)
    """The requests that came to this gateway and have not ended, those that are only asked for among them."""
    ended_early: set[tuple[str, int]] = field(default_factory=set)
    """The requests that ended while it was being found out what is live."""
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)
    refused_until_s: float = 0.0
    """The time until which no request may come, as the keeper has said."""
    uncounted: int = 0
    """Refused requests that the keeper has not been told of."""
    telling: bool = False
    """The keeper is being told of them."""

    def hand_over(self, rival: str) -> None:
        """Another gateway keeps the key from now on."""
        self.kept = False
        self.rival = rival
        if self.holds_back_for(rival):
            self.doubt = None
        self.returned = None
        self.forget_heard()

    def doubt_keeper(self, gateway: str, incarnation: int | None) -> None:
        """A gateway that may have counted the key is gone, or is taken for it: nothing is left of the minute.
        `incarnation` None: it is gone for sure."""
        now_s, doubt = self.ledger.clock.monotonic_s(), self.doubt
        if doubt is None or now_s >= doubt.since_s + MINUTE_S:  # after a minute nothing is left of an old one
            doubt = KeyDoubt(self.ledger.levels(), self.ledger.taken(), now_s)
        self.doubt = replace(doubt, keepers=doubt.keepers | {(gateway, incarnation)})
        self.returned = None
        self.ledger.lower((0.0, 0.0))

    def hand_back(self, keeper: str, incarnation: int) -> Levels | None:
        """Hand the key back to a keeper that was taken for dead, alone, and has counted it all along; return
        what was taken here meanwhile. None, and nothing is done, where there was another doubt or none."""
        doubt = self.doubt
        if doubt is None or doubt.keepers != {(keeper, incarnation)}:
            return None
        taken = self.ledger.taken()
        self.hand_over(keeper)
        self.returned = keeper, doubt
        return taken[0] - doubt.taken[0], taken[1] - doubt.taken[1]

    def holds_back_for(self, keeper: str) -> bool:
        """Return whether our ledger says that nothing is left because that keeper was taken for dead."""
        doubted = () if self.doubt is None else (name for name, _ in self.doubt.keepers)
        return keeper in doubted or (self.returned is not None and self.returned[0] == keeper)

    def hear_count(self, keeper: str) -> None:
        """A keeper has counted a request that came here. One that was wrongly taken for dead knows what is
        left: our ledger need hold back nothing for its sake."""
        if self.returned is not None and self.returned[0] == keeper:
            doubt, self.returned = self.returned[1], None
            self.ledger.refill(doubt.levels, doubt.since_s)

    def forget_heard(self) -> None:
        """Hear the others before anything else is let in."""
        self.heard.clear()

    def lose(self, gateway: str) -> None:
        """Forget the requests of a gateway that is gone, or is taken for it."""
        self.heard.discard(gateway)
        self.ledger.replace_uses(gateway, ())
        if self.rival == gateway:
            self.rival = ""
        if self.returned is not None and self.returned[0] == gateway:
            self.returned = None

    def check_told(self, now_s: float) -> None:
        """Raise LimitReached where the keeper has said that no request may come yet."""
        if now_s < self.refused_until_s:
            ledger, wait_s = self.ledger, self.refused_until_s - now_s
            raise LimitReached.of(ledger.name, ledger.limits, "requests_per_min", wait_s)


def outweighs(key_hash: str, one: str, other: str) -> bool:
    """Return whether gateway `one` comes before `other` as the keeper of the key."""
    return _weight(key_hash, one) > _weight(key_hash, other)


def keeper_of(key_hash: str, gateways: Iterable[str]) -> str:
    """Return the one of `gateways`, at least one, that keeps the key."""
    return max(gateways, key=lambda gateway: _weight(key_hash, gateway))


def _weight(key_hash: str, gateway: str) -> tuple[bytes, str]:
    return blake2b(f"{key_hash}\n{gateway}".encode(), digest_size=8).digest(), gateway
