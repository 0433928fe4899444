"""Bound how many requests wait for models whose workers are away: others find room meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import Overloaded

AWAY_SHARE = 0.25
"""The most of a gateway's sessions that wait so, as a share."""
AWAY_RETRY_MS = 1000
MAX_TOLD_MODELS = 16
"""The most models that are told to be waited for."""
AWAY = "away"
"""Why the gateway sheds here, as `penstock_shed_total` counts it."""


class AwayModels:
    """The requests that wait for a decode worker of their model while others are served."""

    def __init__(self, max_sessions: int) -> None:
        self._most = max(1, int(AWAY_SHARE * max_sessions))
        self._waiting = 0
        self._models: Counter[str] = Counter()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return models that requests wait for, as a heartbeat tells them: who planned that one rests starts
        its workers then."""
        return tuple(sorted(self._models)[:MAX_TOLD_MODELS])

    @contextmanager
    def waiting(self, model: str, *, others_are_served: bool = True) -> Iterator[None]:
        """One more waits. Raises Overloaded where as many wait as may: nobody needs their room while no other
        model is served."""
        if self._waiting >= self._most and others_are_served:
            raise Overloaded(
                f"no decode instance of the model {model!r} is ready, and {self._waiting} requests wait for "
                "one already: retry later",
                hop="gateway",
                retry_after_ms=AWAY_RETRY_MS,
                reason=AWAY,
            )
        self._waiting += 1
        self._models[model] += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._models -= Counter((model,))  # without those of which nobody is left
