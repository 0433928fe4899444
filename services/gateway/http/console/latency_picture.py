"""Show how fast the last minutes were, for the console: percentiles of each window, rates of each slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from services.gateway.scope.recent_latencies import SLOT_S, Percentiles, RateSlot, RecentLatencies

WINDOWS_S = (60, 300)
"""The windows of which percentiles are shown, in seconds; the last one is all that is kept."""


def latency_picture(latencies: RecentLatencies) -> dict[str, Any]:
    slots = latencies.slots()
    return {
        "slot_s": SLOT_S,
        "requests": [slot.outcomes.total() for slot in slots],
        "tokens": [slot.tokens for slot in slots],
        "windows": [_window(slots[-window_s // SLOT_S :], window_s) for window_s in WINDOWS_S],
    }


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
