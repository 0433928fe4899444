"""Count what the last minutes were like, in slots of a few seconds: ends, tokens, times by magnitude.

Every request and every delivery is counted, whatever the rate: each costs one look at the clock and one entry
of a histogram that has as many bins as there are magnitudes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared.deadline import SYSTEM_CLOCK, Clock

SLOT_S = 5
"""The time that shares one slot."""
SLOTS = 60
"""The slots that are kept: five minutes."""
BINS_PER_OCTAVE = 8
"""A percentile is off by 5 % at most: a bin reaches to 1.09 times its beginning, and its middle is told."""
MAX_BIN = BINS_PER_OCTAVE * 34
"""The last bin has all that took longer, from 4.8 hours on."""


@dataclass(slots=True)
class RateSlot:
    """A few seconds: `number` counts slots since the clock began; histograms go by bin."""

    number: int
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    ttft: Counter[int] = field(default_factory=Counter)
    inter_token: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Times in milliseconds over `count` of them; all 0 where there were none."""

    count: int = 0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0

    @classmethod
    def of(cls, histograms: Iterable[Mapping[int, int]]) -> Percentiles:
        total: Counter[int] = Counter()
        for histogram in histograms:
            total.update(histogram)
        count = total.total()
        if not count:
            return cls()
        return cls(count, *(_at(total, count, share) for share in (0.5, 0.95, 0.99)))


class RecentLatencies:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._slots: deque[RateSlot] = deque(maxlen=SLOTS)

    def record_end(self, outcome: str, ttft_us: int | None) -> None:
        """A request has ended; `ttft_us` is None where no token of it was delivered."""
        slot = self._slot(self._clock.monotonic_s())
        slot.outcomes[outcome] += 1
        if ttft_us is not None:
            slot.ttft[_bin_of(ttft_us)] += 1

    def record_delivery(self, tokens: int, gap_s: float | None, now_s: float) -> None:
        """Tokens went to a client at `now_s` of the clock, so long after those before them; None: they are
        the first."""
        slot = self._slot(now_s)
        slot.tokens += tokens
        if gap_s is not None:
            slot.inter_token[_bin_of(gap_s * 1e6)] += 1

    def record_deliveries(self, tokens: int, gaps: Mapping[int, int], now_s: float) -> None:
        """The same for many tokens at once: `gaps` are the numbers of those in each bin."""
        slot = self._slot(now_s)
        slot.tokens += tokens
        for bin_number, count in gaps.items():
            slot.inter_token[bin_number] += count

    def slots(self) -> Sequence[RateSlot]:
        """Return one slot for each of the last `SLOTS`, oldest first; the last one is not over yet."""
        now = int(self._clock.monotonic_s() // SLOT_S)
        kept = {slot.number: slot for slot in self._slots}
        return [kept.get(number) or RateSlot(number) for number in range(now - SLOTS + 1, now + 1)]

    def _slot(self, now_s: float) -> RateSlot:
        number = int(now_s // SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(RateSlot(number))
        return self._slots[-1]


def _bin_of(us: float) -> int:
    return min(MAX_BIN, int(BINS_PER_OCTAVE * math.log2(us))) if us > 1 else 0


def _at(histogram: Mapping[int, int], count: int, share: float) -> float:
    """Return the middle of the bin in which that share of `count` times is reached, in milliseconds."""
    wanted, seen = math.ceil(count * share), 0
    for bin_number in sorted(histogram):
        seen += histogram[bin_number]
        if seen >= wanted:
            break
    return round(2 ** ((bin_number + 0.5) / BINS_PER_OCTAVE) / 1000, 3)
