"""Share what one request learns of an instance: the circuit breakers of a gateway and of its peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import structlog

from services.gateway.fleet.breaker import STALE_S, Breaker, BreakerState
from shared.bus.fleet import FleetView, InstanceView
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import BreakerReport
from shared.telemetry import metrics

log = structlog.get_logger()

MAX_REPORTED = 16
"""Instances in a heartbeat; a fleet with more trouble than that has no better ones to send requests to."""
LAG_S = 0.25
SILENCE_S = 5.0
"""The span in which so much lag of our own excuses an instance's silence: the timers that judge it are of a
few seconds."""

Life = tuple[str, str, int]
"""Role, instance, incarnation: a restarted instance starts closed."""

_SHOWN = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


def life_of(view: InstanceView) -> Life:
    beat = view.heartbeat
    return beat.role, beat.instance, beat.incarnation


class Breakers:
    """The breakers of all instances that this gateway has had trouble with; `gateway` is its own id."""

    def __init__(self, gateway: str, fleet: FleetView, clock: Clock = SYSTEM_CLOCK) -> None:
        self._gateway = gateway
        self._fleet = fleet
        self._clock = clock
        self._breakers: dict[Life, Breaker] = {}
        self._proven_s: dict[Life, float] = {}  # when a breaker closed because a request succeeded
        self._shown: set[str] = set()

    def begin_trial(self, view: InstanceView, request_id: str) -> Trial:
        """The request is about to be given to the instance."""
        breaker = self._breakers.get(life_of(view))
        if breaker is not None:
            breaker.begin(request_id)
        self._fleet.expect_work(view)
        return Trial(self, life_of(view), request_id, self._clock.monotonic_s())

    def shunned(self, views: Iterable[InstanceView], request_id: str) -> set[tuple[str, str]]:
        """Return those of `views`, as (role, instance), that the request should avoid if there is another.

        What a peer reports counts as long as it says so, where we know nothing ourselves: else two gateways
        would keep each other from their probes.
        """
        reported = self._reported_by_peers()
        return {life[:2] for life in map(life_of, views) if self._shuns(life, request_id, reported)}

    def report(self) -> tuple[BreakerReport, ...]:
        """Return what is open or half-open, for our heartbeat; forget who left and what is not worth
        knowing."""
        self._breakers = {
            life: breaker
            for life, breaker in self._breakers.items()
            if not breaker.idle and self._is_there(life)
        }
        fresh_s = self._clock.monotonic_s() - STALE_S
        self._proven_s = {life: at_s for life, at_s in self._proven_s.items() if at_s > fresh_s}
        self._show()
        reports = (BreakerReport(*life, breaker.state.value) for life, breaker in self._breakers.items())
        return tuple(one for one in reports if one.state != BreakerState.CLOSED.value)[:MAX_REPORTED]

    # ---- for trials ---------------------------------------------------------------------------------

    def succeeded(self, life: Life, began_s: float) -> None:
        breaker = self._breakers.get(life)
        if breaker is not None:
            was = breaker.state
            breaker.succeed(began_s)
            if self._log_change(life, was, breaker.state):
                self._proven_s[life] = self._clock.monotonic_s()

    def failed(self, life: Life, request_id: str, *, silent: bool) -> None:
        if silent and self._fleet.own_lag.within_s(SILENCE_S) >= LAG_S:
            self.dropped(life, request_id)
            return
        breaker = self._breakers.setdefault(life, Breaker(self._clock))
        was = breaker.state
        breaker.fail(request_id)
        self._log_change(life, was, breaker.state)

    def ended_well(self, life: Life) -> None:
        breaker = self._breakers.get(life)
        if breaker is not None:
            breaker.make_up()

    def dropped(self, life: Life, request_id: str) -> None:
        breaker = self._breakers.get(life)
        if breaker is not None:
            breaker.drop(request_id)

    # ---- inside -------------------------------------------------------------------------------------

    def _shuns(self, life: Life, request_id: str, reported: Collection[Life]) -> bool:
        breaker = self._breakers.get(life)
        if breaker is not None and breaker.state is not BreakerState.CLOSED:
            return not breaker.takes(request_id)
        return life in reported and life not in self._proven_s

    def _reported_by_peers(self) -> Collection[Life]:
        return {
            (report.role, report.instance, report.incarnation)
            for view in self._fleet.instances("gateway")
            if view.heartbeat.instance != self._gateway
            for report in view.heartbeat.gateway.breakers
        }

    def _is_there(self, life: Life) -> bool:
        view = self._fleet.get(life[0], life[1])
        return view is not None and life_of(view) == life

    def _show(self) -> None:
        """Show the state in the metrics; an instance that is not remembered has no sample."""
        states = {life[1]: breaker.state for life, breaker in self._breakers.items()}
        for instance in self._shown - states.keys():
            metrics.BREAKER_STATE.remove(instance)
        for instance, state in states.items():
            metrics.BREAKER_STATE.labels(instance=instance).set(_SHOWN[state])
        self._shown = set(states)

    def _log_change(self, life: Life, was: BreakerState, now: BreakerState) -> bool:
        """Whether there is one."""
        if was is not now:
            log.warning("breaker", peer_role=life[0], peer=life[1], was=was.value, now=now.value)
        return was is not now


@dataclass(slots=True, eq=False)
class Trial:
    """One request's use of one instance: it may succeed and fail later; once it is over nothing follows."""

    breakers: Breakers
    life: Life
    request_id: str
    began_s: float
    succeeded: bool = field(default=False, init=False)
    over: bool = field(default=False, init=False)

    def succeed(self) -> None:
        """The instance answered, or made progress."""
        if not self.succeeded and not self.over:
            self.succeeded = True
            self.breakers.succeeded(self.life, self.began_s)

    def fail(self, *, silent: bool) -> None:
        """The instance broke, or was silent, which our own lag may explain."""
        if not self.over:
            self.over = True
            self.breakers.failed(self.life, self.request_id, silent=silent)

    def end(self) -> None:
        """The request is not there any more. If it has not succeeded, nothing is known of the instance."""
        if self.over:
            return
        self.over = True
        if self.succeeded:
            self.breakers.ended_well(self.life)
        else:
            self.breakers.dropped(self.life, self.request_id)
