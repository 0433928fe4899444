"""Forecast how many requests a second will come, from windows of those that came.

Three ways are tried beside each other, and the one that was nearest lately is believed:

level    as many as in the last minutes
trend    that, and the slope of it, which dies away (Holt 1957; damped as Gardner and McKenzie 1985)
season   that, times what is usual then over what is usual now

The interval comes from how far each was off before, over the same time ahead, from the mean of a minute then,
less what counting alone gives: a queue's own chance is in the prediction of what instances do.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.seasons import Seasons

LEVEL_HALF_S = 45.0
"""The age at which a window counts half in the level."""
TREND_HALF_S = 90.0
TREND_LASTS_S = 120.0
"""A slope dies away with this time constant."""
ERROR_HALF_S = 1200.0
GAP_S = 300.0
"""The time without a window behind which the slope is forgotten, and the level begins anew."""
JUDGED_S = 60.0
"""A forecast is compared with the mean of so long, the time that it was for in its middle."""
MAX_PENDING = 512
"""The forecasts that are kept until what they told has come."""
LEAST_JUDGED = 8
"""The forecasts of a way that have to have been judged before it is believed over another."""
SURE = 0.67
"""Standard deviations that three of four stay below. The line that the fourth brings is load as well, and
more deviations were measured to cost hours and save nothing."""
WAYS = ("trend", "level", "season")
"""All of them; the first counts where none was nearer than another yet."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Requests a second that are expected, an interval that half of all fall into, and how it was made."""

    rate: float
    low: float
    high: float
    way: str

    @property
    def words(self) -> str:
        return f"{self.rate:.3g} requests/s ({self.low:.3g} to {self.high:.3g}, by {self.way})"


NOBODY_CAME = Forecast(0.0, 0.0, 0.0, "nothing seen yet")


class ArrivalForecast:
    """Learns from windows in the order of time; `ahead_s` is how far ahead its forecasts are judged."""

    def __init__(self, ahead_s: float, seasons: Seasons | None = None) -> None:
        self._ahead_s = ahead_s
        self.seasons = seasons or Seasons()
        self._level = self._slope = 0.0
        self._last: ArrivalWindow | None = None
        self._recent: deque[ArrivalWindow] = deque(maxlen=MAX_PENDING)
        self._pending: deque[tuple[float, dict[str, float]]] = deque(maxlen=MAX_PENDING)
        self._errors: dict[str, float] = {}
        self._judged: dict[str, int] = {}

    def add(self, window: ArrivalWindow) -> None:
        self._judge(window)
        self._follow(window)
        self.seasons.add(window)
        self._last = window
        due_s = window.ended_s + self._ahead_s + JUDGED_S / 2
        self._pending.append((due_s, self._ways(self._ahead_s)))

    def at(self, ahead_s: float) -> Forecast:
        """Return the forecast for `ahead_s` behind the last window."""
        if self._last is None:
            return NOBODY_CAME
        ways = self._ways(ahead_s)
        way = min(ways, key=self._doubt)
        rate, counting = ways[way], 1.0 / JUDGED_S
        spread = math.sqrt(max(0.0, self._errors.get(way, 0.0) - counting) * max(rate, counting))
        return Forecast(rate, max(0.0, rate - SURE * spread), rate + SURE * spread, way)

    def _follow(self, window: ArrivalWindow) -> None:
        """Move level and slope towards what has come."""
        since_s = window.ended_s - self._last.ended_s if self._last else 0.0
        if self._last is None or since_s > GAP_S:
            self._level, self._slope = window.rate, 0.0
            return
        before = self._level
        expected = before + self._slope * since_s
        self._level = max(0.0, expected + _weight(since_s, LEVEL_HALF_S) * (window.rate - expected))
        slope = (self._level - before) / max(since_s, 1e-9)
        self._slope += _weight(since_s, TREND_HALF_S) * (slope - self._slope)

    def _ways(self, ahead_s: float) -> dict[str, float]:
        assert self._last is not None
        damped_s = TREND_LASTS_S * -math.expm1(-ahead_s / TREND_LASTS_S)
        found = {"trend": max(0.0, self._level + self._slope * damped_s), "level": self._level}
        now = self.seasons.usual(self._last.ended_s)
        then = self.seasons.usual(self._last.ended_s + ahead_s)
        if now is not None and then is not None:
            found["season"] = self._level * then / now if now > 0 else self._level + then
        return found

    def _judge(self, window: ArrivalWindow) -> None:
        """Compare the latest forecast for this time with what came, as a multiple of what counting gives."""
        self._recent.append(window)
        while self._recent[0].ended_s <= window.ended_s - JUDGED_S:
            self._recent.popleft()
        seen_s = sum(each.span_s for each in self._recent)
        actual = sum(each.requests for each in self._recent) / seen_s
        told: dict[str, float] = {}
        while self._pending and self._pending[0][0] <= window.ended_s:
            due_s, ways = self._pending.popleft()
            told = ways if window.ended_s - due_s < window.span_s else {}
        for way, rate in told.items():
            error = (actual - rate) ** 2 / max(rate, 1.0 / JUDGED_S)
            before = self._errors.get(way, error)
            self._errors[way] = before + _weight(window.span_s, ERROR_HALF_S) * (error - before)
            self._judged[way] = min(LEAST_JUDGED, self._judged.get(way, 0) + 1)

    def _doubt(self, way: str) -> tuple[float, int]:
        known = self._judged.get(way, 0) >= LEAST_JUDGED
        return (self._errors[way] if known else math.inf), WAYS.index(way)


def _weight(passed_s: float, half_s: float) -> float:
    """Return the part that what is new has where what is `half_s` old has half of its own left."""
    return 1.0 - math.pow(0.5, passed_s / half_s)
