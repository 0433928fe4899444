"""One gateway, its keeper, counts what a key uses at all of them, and is asked by the others.

`key_hash` names the key as the file of API keys does; a use is a request, by the number that its gateway gave
it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_KEY_USES = 65_536
"""The most requests that a message about a key names."""


@dataclass(frozen=True, slots=True)
class BeginKeyUses:
    """gateway → its keeper: may these requests of the key come, all or none? `tokens` is what each may use.

    Answered by KeyUsesBegun, KeyUsesRefused or KeyKeptElsewhere.
    """

    key_hash: str
    uses: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountKeyRefusals:
    """gateway → its keeper: so many more requests were refused for what they ask; answered like
    BeginKeyUses."""

    key_hash: str
    count: int


@dataclass(frozen=True, slots=True)
class KeyUsesBegun:
    """The answer: they are counted."""


@dataclass(frozen=True, slots=True)
class KeyUsesRefused:
    """The answer: the limit of that name is reached, for so long as far as is known."""

    limit: str
    wait_us: int


@dataclass(frozen=True, slots=True)
class KeyKeptElsewhere:
    """The answer of a gateway that does not count this key now, or (`unknown`) whose file has none such."""

    unknown: bool = False


@dataclass(frozen=True, slots=True)
class SettleKeyUse:
    """gateway → its keeper: a use took so many tokens and requests more than was said, or fewer."""

    key_hash: str
    use: int
    tokens: int
    requests: int
    ended: bool


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """gateway → another: from now on I count this key; answered by KeyClaimed or KeyKeptElsewhere. `kept`: I
    have counted it all along, in this life of mine."""

    key_hash: str
    incarnation: int
    kept: bool


@dataclass(frozen=True, slots=True)
class KeyClaimed:
    """The answer: what is live here, and the most that may be left of the key's minute. `requests_taken` and
    `tokens_taken` of it were used here while whoever claims was wrongly taken for dead."""

    requests_left: float
    tokens_left: float
    uses: tuple[int, ...]
    requests_taken: float = 0.0
    tokens_taken: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaveKey:
    """gateway → the next keeper: I go, and so much is left of the key's minute."""

    key_hash: str
    requests_left: float
    tokens_left: float
