"""Measure how long a worker takes from its start to its first work, by its heartbeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shared.messages import Heartbeat

KEPT_STARTS = 5
"""The starts whose longest counts."""
MAX_LOADING = 1024
"""The instances that are followed while they load."""


class ColdStarts:
    """Counts who was seen as it loaded and is ready then: of one that was ready before nothing is known."""

    def __init__(self, assumed_s: float) -> None:
        self._assumed_s = assumed_s
        self._loading: dict[str, int] = {}
        self._took_s: deque[float] = deque(maxlen=KEPT_STARTS)

    @property
    def longest_s(self) -> float:
        """The longest of the last ones, what was assumed where none has been seen."""
        return max(self._took_s, default=self._assumed_s)

    @property
    def measured(self) -> bool:
        return bool(self._took_s)

    def look(self, workers: Sequence[Heartbeat]) -> None:
        for beat in workers:
            began_us = self._loading.get(beat.instance)
            if beat.state == "loading" and (began_us is not None or len(self._loading) < MAX_LOADING):
                self._loading[beat.instance] = beat.incarnation
            elif beat.state == "ready" and began_us == beat.incarnation:
                self._took_s.append(max(0.0, (beat.sent_unix_us - beat.incarnation) / 1e6))
            if beat.state != "loading":
                self._loading.pop(beat.instance, None)
        heard = {beat.instance for beat in workers}
        for instance in self._loading.keys() - heard:
            del self._loading[instance]
