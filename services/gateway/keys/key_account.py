"""Keep the books of one key in one gateway, and say which gateway's books are the fleet's.

The gateway whose name and the key have the highest hash together keeps the key (rendezvous hashing, Thaler
and Ravishankar 1998): all gateways that know of each other find the same one, and one that comes or goes
moves no other gateway's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from services.gateway.keys.rate_limits import KeyLedger, LimitReached


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
        self.forget_heard()

    def forget_heard(self) -> None:
        """Hear the others before anything else is let in."""
        self.heard.clear()

    def lose(self, gateway: str) -> None:
        """Forget the requests of a gateway that is gone, or is taken for it."""
        self.heard.discard(gateway)
        self.ledger.replace_uses(gateway, ())
        if self.rival == gateway:
            self.rival = ""

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
