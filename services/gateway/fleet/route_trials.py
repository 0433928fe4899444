"""Learn from a route about the instances that it is on."""

from __future__ import annotations

from services.gateway.fleet.breakers import Breakers, Trial
from services.gateway.fleet.request_client import InstanceGone
from services.gateway.fleet.routing import RoutingDecision
from shared.bus.fleet import FleetView, InstanceView
from shared.errors import InternalError, NoAnswer, PenstockError, ProtocolError, Unavailable
from shared.roles import ROUTED_ROLES


class RouteTrials:
    """One trial per routed role, of the latest route of one request."""

    def __init__(self, breakers: Breakers, fleet: FleetView, request_id: str) -> None:
        self._breakers = breakers
        self._fleet = fleet
        self._request_id = request_id
        self._trials: dict[str, Trial] = {}
        self.views: dict[str, InstanceView] = {}
        """The instances by role, as they were when the route began: this life of each."""

    def begin(self, route: RoutingDecision) -> None:
        found = {role: self._fleet.get(role, route.instance_of(role)) for role in ROUTED_ROLES}
        self.views = {role: view for role, view in found.items() if view is not None}
        self._trials = {
            role: self._breakers.begin_trial(view, self._request_id) for role, view in self.views.items()
        }

    def move(self, role: str, instance: str) -> None:
        """Another instance of `role` goes on with the route: what comes now is its merit, or its fault."""
        view = self._fleet.get(role, instance)
        if role in self._trials:
            self._trials.pop(role).end()
        self.views.pop(role, None)
        if view is not None:
            self.views[role] = view
            self._trials[role] = self._breakers.begin_trial(view, self._request_id)

    def record_progress(self, tokens: int, *, finished: bool) -> None:
        """Rows have come: the first token is prefill's, what follows is decode's."""
        if tokens or finished:
            self._succeed("prefill", "detokenizer")
        if tokens > 1 or finished:
            self._succeed("decode")

    def fail(self, role: str, error: PenstockError) -> None:
        """`role` could not take the request, or not go on with it."""
        trial = self._trials.get(role)
        if trial is not None and speaks_against(error):
            trial.fail(silent=isinstance(error, NoAnswer | Unavailable))

    def end(self) -> None:
        """The route is over; of whom nothing was learned, nothing is said."""
        for trial in self._trials.values():
            trial.end()

    def _succeed(self, *roles: str) -> None:
        for role in roles:
            if role in self._trials:
                self._trials[role].succeed()


def speaks_against(error: PenstockError) -> bool:
    """Whether an instance broke or fell silent.

    Not: it is full, the request is at fault, the request's time is up. Whom the fleet view has lost is not
    routed to anyway, and a restarted one starts anew.
    """
    return isinstance(error, NoAnswer | Unavailable | InternalError | ProtocolError) and not isinstance(
        error, InstanceGone
    )
