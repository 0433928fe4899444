"""Subscriptions by pattern, matched as nats-server's sublist does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.bus.server_connection import ServerConnection

MAX_KNOWN_SUBJECTS = 4096
"""The most subjects whose matches are remembered between two changes."""


@dataclass(eq=False, slots=True)
class ServerSubscription:
    """A subscription as the server has it. `limit` 0 is none; `delivered` counts towards it."""

    client: ServerConnection
    sid: bytes
    pattern: bytes
    queue: bytes = b""
    limit: int = 0
    delivered: int = 0
    open: bool = True
    tokens: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = tuple(self.pattern.split(b"."))


@dataclass(frozen=True, slots=True)
class Matches:
    """The subscriptions of a subject: each that is alone, and the members of each queue group."""

    alone: tuple[ServerSubscription, ...] = ()
    queues: tuple[tuple[ServerSubscription, ...], ...] = ()


@dataclass(slots=True)
class Level:
    """The subscriptions whose patterns begin alike: those that end here, those with `>` here, and the others
    by their next token."""

    here: dict[ServerSubscription, None] = field(default_factory=dict)
    tail: dict[ServerSubscription, None] = field(default_factory=dict)
    next: dict[bytes, Level] = field(default_factory=dict)

    def place_of(self, tokens: tuple[bytes, ...]) -> dict[ServerSubscription, None]:
        level = self
        for token in tokens:
            if token == b">":
                return level.tail
            level = level.next.setdefault(token, Level())
        return level.here

    def fitting(self, subject: tuple[bytes, ...]) -> Iterator[ServerSubscription]:
        """Yield those of a subject, the rest of which this is."""
        if not subject:
            yield from self.here
            return
        yield from self.tail
        for token in dict.fromkeys((subject[0], b"*")):
            if token in self.next:
                yield from self.next[token].fitting(subject[1:])


class Interest:
    """All subscriptions of a server, in the order in which they were made."""

    def __init__(self) -> None:
        self._serial_of: dict[ServerSubscription, int] = {}
        self._serials = count()
        self._root = Level()
        self._known: dict[bytes, Matches] = {}

    def add(self, subscription: ServerSubscription) -> None:
        self._serial_of[subscription] = next(self._serials)
        self._root.place_of(subscription.tokens)[subscription] = None
        self._known.clear()

    def remove(self, subscription: ServerSubscription) -> None:
        subscription.open = False
        if self._serial_of.pop(subscription, None) is not None:
            del self._root.place_of(subscription.tokens)[subscription]
        self._known.clear()

    def of(self, subject: bytes) -> Matches:
        matches = self._known.get(subject)
        if matches is None:
            if len(self._known) >= MAX_KNOWN_SUBJECTS:
                self._known.clear()
            matches = self._known[subject] = self._match(subject)
        return matches

    def _match(self, subject: bytes) -> Matches:
        tokens = tuple(subject.split(b"."))
        alone: list[ServerSubscription] = []
        queues: dict[bytes, list[ServerSubscription]] = {}
        found = () if b"" in tokens else self._root.fitting(tokens)
        for one in sorted(found, key=self._serial_of.__getitem__):
            if one.queue:
                queues.setdefault(one.queue, []).append(one)
            else:
                alone.append(one)
        return Matches(tuple(alone), tuple(map(tuple, queues.values())))


def fits(pattern: tuple[bytes, ...], subject: tuple[bytes, ...]) -> bool:
    """Return whether a subject is one of a pattern's. A subject with an empty token is nobody's."""
    if b"" in subject:
        return False
    for at, token in enumerate(pattern):
        if token == b">":
            return len(subject) > at
        if at >= len(subject) or (token != b"*" and token != subject[at]):
            return False
    return len(subject) == len(pattern)


def can_be_subscribed(tokens: tuple[bytes, ...]) -> bool:
    """Return whether a pattern has no empty token, and nothing behind `>`."""
    return b"" not in tokens and b">" not in tokens[:-1]
