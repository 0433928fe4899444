"""Queue prompts for prefill: tenants in turn, of each the earliest deadline and the shortest prompt in turn
within a priority class.

Pure and bounded. Who found no room at its turn is overtaken by smaller ones of its tenant only for
PATIENCE_S: then it claims the room, and nobody of its class or below is taken before it. Each further
PATIENCE_S it claims it against one class more.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import Overloaded
from shared.fairness.service_counters import ServiceCounters, Standing
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.fairness.shortest_turns import ShortestTurns

MIN_RETRY_MS = 50
PATIENCE_S = 1.0
"""Others may take the room that a prompt did not find for so long."""
MAX_GUESTS = 64
"""The tenants, beside those that fill a queue, that may have one prompt each in it beyond its limits."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that waits. `num_tokens` are those still to compute; the greater priority goes first.

    `refused_s`: when it first found no room at its turn, None when it has not.
    """

    key: str
    num_tokens: int
    deadline: Deadline
    priority: int = 0
    refused_s: float | None = None
    share: TenantShare = OPEN_SHARE

    def is_like(self, other: Entry) -> bool:
        """Whether they are of one tenant and class."""
        return self.share.tenant == other.share.tenant and self.priority == other.priority

    def claims(self, now_s: float) -> int:
        """The number of classes, its own first, that it claims the room against; 0: others may take it."""
        return 0 if self.refused_s is None else int((now_s - self.refused_s) / PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Dequeued:
    """The result of `take_entry`: the next entry, and those that expired while they waited.

    `lead`: how many tokens that put the shortest ahead of the first, for `put_back`.
    """

    entry: Entry | None
    expired: tuple[Entry, ...]
    lead: int = 0


class DeadlineQueue:
    """Refuses what does not fit; never drops an entry without handing it to the caller."""

    def __init__(
        self,
        *,
        max_entries: int,
        max_tokens: int,
        counters: ServiceCounters | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`counters` say which tenant goes first; whoever owns them says who wants something."""
        self._counters = counters or ServiceCounters()
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._clock = clock
        self._ordered: list[tuple[tuple[int, float, int], Entry]] = []  # most urgent first
        self._arrivals = 0
        self._turns: ShortestTurns[Entry] = ShortestTurns(lambda entry: entry.num_tokens)
        self.queued_tokens = 0

    def push(self, entry: Entry, tokens_per_s: float) -> None:
        """Raises Overloaded with the time that the queue needs to make room at `tokens_per_s`.

        One entry always fits into an empty queue, however long it is: the model's context bounds it. Beside
        others there is one more for each of MAX_GUESTS tenants that have none here: none fills it for all.
        """
        over_tokens = bool(self._ordered) and self.queued_tokens + entry.num_tokens > self._max_tokens
        if (over_tokens or len(self._ordered) >= self._max_entries) and not self._is_guest(entry):
            raise Overloaded(
                f"{len(self._ordered)} prompts of {self.queued_tokens} tokens wait; "
                "try another worker or later",
                hop="prefill",
                retry_after_ms=self._retry_ms(entry.num_tokens, tokens_per_s),
            )
        self._arrivals += 1
        rank = (-entry.priority, entry.deadline.at_s, self._arrivals)
        insort(self._ordered, (rank, entry), key=lambda item: item[0])
        self.queued_tokens += entry.num_tokens

    def take_entry(self, can_start: Callable[[str], bool] = lambda _: True) -> Dequeued:
        """Remove the entry whose turn it is, of those that have time and can start, and all that expired
        before them.

        The most urgent one and the shortest of its tenant and class take turns; who claims the room has it.
        """
        expired: list[Entry] = []
        line: list[Entry] = []
        for entry in self._in_turn():
            if entry.deadline.expired(self._clock):
                if not line:
                    expired.append(entry)
            elif can_start(entry.key) and (not line or entry.is_like(line[0])):
                line.append(entry)
        for late in expired:
            self.remove(late.key)
        if not line:
            return Dequeued(None, tuple(expired))
        chosen = line[0] if self.claims_room(line[0]) else self._turns.next(line)
        self.remove(chosen.key)
        return Dequeued(chosen, tuple(expired), self._turns.count(line, [(chosen, chosen.num_tokens)]))

    def _is_guest(self, entry: Entry) -> bool:
        """Whether its tenant has nothing here, and may have one all the same where others fill the queue."""
        tenants = {other.share.tenant for _, other in self._ordered}
        return entry.share.tenant not in tenants and len(tenants) <= MAX_GUESTS

    @property
    def first(self) -> Entry | None:
        """The entry whose turn is next; None when nothing waits."""
        return next(iter(self._in_turn()), None)

    def goes_before(self, one: Entry, other: Entry) -> bool:
        """Whether `one`, which is being computed, does not give way to `other`."""
        if one.share.tenant == other.share.tenant:
            return one.priority >= other.priority
        return self._counters.standing(one.share.tenant) <= self._counters.standing(other.share.tenant)

    def claims_room(self, entry: Entry) -> bool:
        """Whether nobody may be taken behind `entry` until it has started."""
        return entry.claims(self._clock.monotonic_s()) > 0

    def _in_turn(self) -> list[Entry]:
        waiting = [entry for _, entry in self._ordered]
        if self._counters.alone and all(entry.refused_s is None for entry in waiting):
            return waiting
        now_s = self._clock.monotonic_s()

        def turn(entry: Entry) -> tuple[Standing, int, float]:
            standing, claims = self._counters.standing(entry.share.tenant), entry.claims(now_s)
            if not claims:
                return standing, -entry.priority, math.inf
            return standing, -(entry.priority + claims - 1), entry.refused_s or 0.0

        return sorted(waiting, key=turn)  # where that is equal, as they stand

    def put_back(self, entry: Entry, lead: int = 0) -> None:
        """The taken entry found no room: it is first among its equals again, over any limit. `lead` is what
        its turn counted for."""
        self._turns.take_back(lead)
        insort(self._ordered, ((-entry.priority, entry.deadline.at_s, 0), entry), key=lambda item: item[0])
        self.queued_tokens += entry.num_tokens

    def shorten(self, entry: Entry) -> None:
        """Less of the prompt of that key is still to compute than when it came. Unknown keys are fine."""
        for index, (rank, earlier) in enumerate(self._ordered):
            if earlier.key == entry.key:
                self._ordered[index] = rank, entry
                self.queued_tokens += entry.num_tokens - earlier.num_tokens
                return

    def remove(self, key: str) -> Entry | None:
        for index, (_, entry) in enumerate(self._ordered):
            if entry.key == key:
                del self._ordered[index]
                self.queued_tokens -= entry.num_tokens
                return entry
        return None

    def expired(self) -> list[Entry]:
        """Remove and return every entry whose deadline has passed."""
        late = [entry for _, entry in self._ordered if entry.deadline.expired(self._clock)]
        for entry in late:
            self.remove(entry.key)
        return late

    def __len__(self) -> int:
        return len(self._ordered)

    def _retry_ms(self, num_tokens: int, tokens_per_s: float) -> int:
        excess = max(1, self.queued_tokens + num_tokens - self._max_tokens)
        return max(MIN_RETRY_MS, round(1000 * excess / tokens_per_s)) if tokens_per_s > 0 else MIN_RETRY_MS
