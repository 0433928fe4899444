"""Whether one instance is trusted with requests, by what became of those it was given. Pure, with a clock.

closed ──(FAILURES requests fail within WINDOW_S)──► open ──(its time)──► half-open
  ▲                                                     ▲                     │ one request: the probe
  └───────────────────────(it makes progress)───────────┼─────────────────────┤
                                                        └───────(it fails)────┘ for twice as long
"""

from __future__ import annotations

from enum import Enum

from shared.deadline import SYSTEM_CLOCK, Clock

FAILURES = 3
"""Requests that failed there, each that ended well there making up for one. A request counts once: one that
nothing can compute must not close off a fleet."""
WINDOW_S = 10.0
FIRST_OPEN_S = 1.0
MAX_OPEN_S = 30.0
PROBE_S = 10.0
"""A probe that has told nothing by then is not waited for: another one may try."""
STALE_S = 60.0
"""Nobody has tried for so long after its time was up: what was known is old, peers should not go by it."""


class BreakerState(Enum):
    CLOSED = "closed"
    HALF_OPEN = "half-open"
    OPEN = "open"


class Breaker:
    """The circuit breaker of one life of an instance; `began_s` is when the request was given to it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._failures: dict[str, float] = {}  # request id -> when
        self._opened_s = 0.0
        self._open_for_s = 0.0  # 0 while closed
        self._probe = ""
        self._probe_until_s = 0.0

    @property
    def state(self) -> BreakerState:
        waited_s = self._clock.monotonic_s() - self._opened_s
        if not self._open_for_s or waited_s >= self._open_for_s + STALE_S:
            return BreakerState.CLOSED
        return BreakerState.OPEN if waited_s < self._open_for_s else BreakerState.HALF_OPEN

    @property
    def idle(self) -> bool:
        """Closed, and nothing speaks against the instance: not worth remembering."""
        return self.state is BreakerState.CLOSED and not self._recent_failures()

    def takes(self, request_id: str) -> bool:
        """Whether the request may be tried there; while a probe is out, no other one."""
        if self.state is BreakerState.HALF_OPEN:
            return self._probe in ("", request_id) or self._clock.monotonic_s() >= self._probe_until_s
        return self.state is BreakerState.CLOSED

    def begin(self, request_id: str) -> None:
        """The request is given to the instance: in the half-open state it is the probe."""
        if self.state is BreakerState.HALF_OPEN and self.takes(request_id):
            self._probe = request_id
            self._probe_until_s = self._clock.monotonic_s() + PROBE_S

    def succeed(self, began_s: float) -> None:
        """A request made progress there. What began before the breaker opened says nothing new."""
        if self.state is not BreakerState.CLOSED and began_s >= self._opened_s:
            self._open_for_s = 0.0
            self._probe = ""

    def make_up(self) -> None:
        """A request is over there, and all went well: one failure is forgiven."""
        if self._failures:
            del self._failures[next(iter(self._failures))]

    def fail(self, request_id: str) -> None:
        """The instance failed the request. While it is open or half-open, only the probe tells."""
        state = self.state
        if state is BreakerState.HALF_OPEN and self._probe == request_id:
            self._open(min(2 * self._open_for_s, MAX_OPEN_S))
        elif state is BreakerState.CLOSED:
            self._failures = self._recent_failures() | {request_id: self._clock.monotonic_s()}
            if len(self._failures) >= FAILURES:
                self._open(FIRST_OPEN_S)

    def drop(self, request_id: str) -> None:
        """The request ended without telling anything: it was refused, cancelled, or its own time was up."""
        if self._probe == request_id:
            self._probe = ""

    def _open(self, seconds: float) -> None:
        self._opened_s, self._open_for_s = self._clock.monotonic_s(), seconds
        self._probe = ""
        self._failures.clear()

    def _recent_failures(self) -> dict[str, float]:
        since_s = self._clock.monotonic_s() - WINDOW_S
        return {request_id: at_s for request_id, at_s in self._failures.items() if at_s > since_s}
