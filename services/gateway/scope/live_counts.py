"""Count the requests that run and wait, by model, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from services.gateway.scope.session_state import RequestPhase, SessionState
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled

_UNCOUNTED = (RequestPhase.ENDED, RequestPhase.SHARED)
"""The phases of requests that are not counted: who shares a computation needs no worker of its own."""


class LiveCounts:
    """Models are those that the fleet serves, or has served since this gateway started."""

    def __init__(self) -> None:
        self._models: set[str] = set()

    def show(self, states: Iterable[SessionState]) -> None:
        counts = Counter((state.model, state.running) for state in states if state.phase not in _UNCOUNTED)
        self._models |= {model for model, _ in counts}
        for model in self._models:
            labelled(metrics.REQUESTS_RUNNING, model).set(counts[model, True])
            labelled(metrics.REQUESTS_WAITING, model).set(counts[model, False])
