"""Keep the failed and the slowest requests of the last minutes, however many others have ended since."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from services.gateway.scope.recent_latencies import SLOT_S, SLOTS
from services.gateway.scope.request_record import RequestRecord
from shared.deadline import SYSTEM_CLOCK, Clock

MAX_SLOT_FAILURES = 4
"""The most requests of one slot that are kept because they have failed: the first of each kind of error."""
MAX_SLOT_SLOW = 4
"""The most requests of one slot that are kept as its slowest, to the first token and in all."""


class TailRequests:
    """Time is cut into the slots of the rates beside it, so that a bad moment leaves the others theirs."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)

    def add(self, record: RequestRecord) -> None:
        """A request has ended: it is kept if it is among the worst of its slot."""
        number = self._number()
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
        self._slots[-1].add(record)

    def failed(self, count: int) -> Sequence[RequestRecord]:
        """Return at most so many that had no answer, the newest first."""
        return [record for slot in reversed(self._kept()) for record in reversed(slot.failed.values())][
            :count
        ]

    def slowest_starts(self, count: int) -> Sequence[RequestRecord]:
        """Return at most so many answered ones, the longest time to the first token first."""
        return self._slowest(lambda slot: slot.starts, count)

    def slowest(self, count: int) -> Sequence[RequestRecord]:
        """Return at most so many answered ones, the longest time in all first."""
        return self._slowest(lambda slot: slot.totals, count)

    def __iter__(self) -> Iterator[RequestRecord]:
        """All that are kept, some of them more than once."""
        for slot in self._slots:
            yield from slot.failed.values()
            yield from slot.starts
            yield from slot.totals

    def _slowest(self, of: Callable[[_Slot], _Slowest], count: int) -> list[RequestRecord]:
        entries = [entry for slot in self._kept() for entry in of(slot).entries]
        return [record for _, _, record in heapq.nlargest(count, entries, key=lambda entry: entry[0])]

    def _kept(self) -> list[_Slot]:
        oldest = self._number() - SLOTS
        return [slot for slot in self._slots if slot.number > oldest]

    def _number(self) -> int:
        return int(self._clock.monotonic_s() // SLOT_S)


@dataclass(slots=True)
class _Slowest:
    """The slowest ones by one measure, the least of them first. A number tells equal times apart."""

    entries: list[tuple[int, int, RequestRecord]] = field(default_factory=list)
    _seen: int = 0

    def add(self, time_us: int, record: RequestRecord) -> None:
        if len(self.entries) < MAX_SLOT_SLOW:
            self._seen += 1
            heapq.heappush(self.entries, (time_us, -self._seen, record))
        elif time_us > self.entries[0][0]:
            self._seen += 1
            heapq.heapreplace(self.entries, (time_us, -self._seen, record))

    def __iter__(self) -> Iterator[RequestRecord]:
        return (record for _, _, record in self.entries)


@dataclass(slots=True)
class _Slot:
    """A few seconds: `failed` has a request for each (code, hop)."""

    number: int
    failed: dict[tuple[str, str], RequestRecord] = field(default_factory=dict)
    starts: _Slowest = field(default_factory=_Slowest)
    totals: _Slowest = field(default_factory=_Slowest)

    def add(self, record: RequestRecord) -> None:
        if record.finish:
            self.totals.add(record.total_us, record)
            if record.ttft_us is not None:
                self.starts.add(record.ttft_us, record)
        elif len(self.failed) < MAX_SLOT_FAILURES:
            self.failed.setdefault((record.error, record.hop), record)
