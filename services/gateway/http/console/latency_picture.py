"""Show how fast the last minutes were, for the console: percentiles of each window, rates of each slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from services.gateway.scope.recent_latencies import SLOT_S, SLOTS, Percentiles, RateSlot
from shared.messages import ConsoleReport

WINDOWS_S = (60, 300)
"""The windows of which percentiles are shown, in seconds; the last one is all that is kept."""


def latency_picture(reports: Iterable[ConsoleReport]) -> dict[str, Any]:
    """Return what the last minutes were like at all gateways that report."""
    slots = _summed(reports)
    return {
        "slot_s": SLOT_S,
        "requests": [slot.outcomes.total() for slot in slots],
        "tokens": [slot.tokens for slot in slots],
        "windows": [_window(slots[-window_s // SLOT_S :], window_s) for window_s in WINDOWS_S],
    }


def _summed(reports: Iterable[ConsoleReport]) -> Sequence[RateSlot]:
    """Return the last slots, oldest first. Those of gateways on other machines begin up to one slot apart."""
    slots = [RateSlot(number) for number in range(SLOTS)]
    for told in (slot for report in reports for slot in report.slots if 0 <= slot.slots_ago < SLOTS):
        slot = slots[-1 - told.slots_ago]
        slot.outcomes.update(dict(told.outcomes))
        slot.tokens += told.tokens
        slot.ttft.update(dict(told.ttft))
        slot.inter_token.update(dict(told.inter_token))
    return slots


def _window(slots: Sequence[RateSlot], window_s: int) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    for slot in slots:
        outcomes.update(slot.outcomes)
    return {
        "seconds": window_s,
        "outcomes": dict(outcomes),
        "tokens": sum(slot.tokens for slot in slots),
        "ttft": asdict(Percentiles.of(slot.ttft for slot in slots)),
        "inter_token": asdict(Percentiles.of(slot.inter_token for slot in slots)),
    }
