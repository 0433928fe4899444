"""Keep the last requests with their timelines, for operators who look: a few of each second, all counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.fleet.routing import RoutingDecision
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.recent_latencies import RecentLatencies
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.session_state import SessionState
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.roles import ROLES
from shared.telemetry.timeline import Phase

MAX_KEPT_REQUESTS = 200
"""The most requests that are kept, the newest ones."""
KEPT_PER_S = 20
"""The most requests of one second that are kept; those beyond are counted alone."""
MAX_KEPT_PHASES = 64
"""The most phases that are kept of one request: one that is routed anew again and again has more."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A request that has ended. `route` are the instances, (role, instance), that it was on last."""

    request_id: str
    tenant: str
    model: str
    outcome: str
    error: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    replacements: int
    ended_unix_ms: int
    ttft_us: int | None
    total_us: int
    route: tuple[tuple[str, str], ...]
    phases: tuple[Phase, ...]


class RecentRequests:
    """`left_out` counts the requests of which nothing but their counts was kept."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._kept: deque[RequestSummary] = deque(maxlen=MAX_KEPT_REQUESTS)
        self._second = 0
        self._kept_of_second = 0
        self.left_out = 0
        self.latencies = RecentLatencies(clock)

    def record_end(
        self, request_id: str, tenant: str, outcome: Outcome, state: SessionState, timeline: RequestTimeline
    ) -> None:
        """A request has ended, and its timeline with it."""
        self.latencies.record_end(outcome.word, timeline.measured_ttft_us)
        if not self._has_room():
            self.left_out += 1
            return
        self._kept.append(
            RequestSummary(
                request_id=request_id,
                tenant=tenant,
                model=state.model,
                outcome=outcome.word,
                error="" if outcome.error is None else str(outcome.error)[:MAX_ERROR_CHARS],
                prompt_tokens=state.log.prompt_tokens,
                cached_tokens=state.cached_tokens,
                tokens=len(state.log.ids),
                replacements=state.replacements,
                ended_unix_ms=self._clock.unix_us() // 1000,
                ttft_us=timeline.measured_ttft_us,
                total_us=timeline.measured_total_us,
                route=_places(state.route),
                phases=tuple(timeline.measured_phases()[:MAX_KEPT_PHASES]),
            )
        )

    def newest(self, count: int) -> Sequence[RequestSummary]:
        """Return at most so many, the newest first."""
        return list(self._kept)[: -count - 1 : -1]

    def _has_room(self) -> bool:
        second = int(self._clock.monotonic_s())
        if second != self._second:
            self._second, self._kept_of_second = second, 0
        self._kept_of_second += 1
        return self._kept_of_second <= KEPT_PER_S


def _places(route: RoutingDecision | None) -> tuple[tuple[str, str], ...]:
    if route is None:
        return ()
    return tuple((role, instance) for role in ROLES if (instance := route.instance_of(role)))
