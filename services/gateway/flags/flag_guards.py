"""Watch the requests of this gateway that have a guarded change: those that run or have just ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InvalidRequest
from shared.flags.guard import GuardBound, RequestTimes, parse_guard
from shared.messages import FlagChange

log = structlog.get_logger()

WINDOW_S = 60.0
"""A request counts for so long after its end."""
MAX_WATCHED = 4096
"""The most ended requests of a change that count: the latest."""


@dataclass(frozen=True, slots=True)
class FlaggedTimes:
    """A request that has changes, and what is known of its times."""

    flags: tuple[str, ...]
    times: RequestTimes


@dataclass(slots=True)
class _Watched:
    bounds: tuple[GuardBound, ...]
    ended: deque[tuple[float, RequestTimes]] = field(default_factory=lambda: deque(maxlen=MAX_WATCHED))


class FlagGuards:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    def put(self, active: Iterable[FlagChange]) -> None:
        """Watch these from now on; of those that were watched already what is known stays."""
        watched = {}
        for change in active:
            if not change.guard:
                continue
            try:
                bounds = parse_guard(change.guard)
            except InvalidRequest as error:  # a newer gateway took it
                log.warning("flag_guard_unknown", version=change.version, error=str(error))
                continue
            watched[change.version] = self._watched.get(change.version) or _Watched(bounds)
        self._watched = watched

    def record_end(self, ended: FlaggedTimes) -> None:
        """A request with changes has ended, or was not taken."""
        for version in ended.flags:
            if version in self._watched:
                self._watched[version].ended.append((self._clock.monotonic_s(), ended.times))

    def burning(self, live: Iterable[FlaggedTimes]) -> dict[str, str]:
        """Return the changes of which a guard burns, each with why. `live` are the requests that run."""
        running: dict[str, list[RequestTimes]] = {version: [] for version in self._watched}
        for request in live:
            for version in request.flags:
                if version in running:
                    running[version].append(request.times)
        since_s = self._clock.monotonic_s() - WINDOW_S
        found = {}
        for version, watched in self._watched.items():
            while watched.ended and watched.ended[0][0] < since_s:
                watched.ended.popleft()
            times = [*(each for _, each in watched.ended), *running[version]]
            why = next((why for bound in watched.bounds if (why := bound.burns(times))), "")
            if why:
                found[version] = f"{why} of the last {WINDOW_S:.0f} s"
        return found
