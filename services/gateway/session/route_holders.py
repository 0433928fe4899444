"""Tell those who hold something of a request that they need it no more: each route's, and at its end all."""

from __future__ import annotations

from collections.abc import Collection

from services.gateway.request_scope import RequestScope
from services.gateway.scope.outcome import Outcome
from shared.errors import GatewayStopping
from shared.roles import TARGET_ROLES


class RouteHolders:
    """The holders of one request's routes."""

    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._context = scope.context
        self._state = scope.state

    def cancel_route(self, why: str) -> None:
        """Tell the holders of a route that failed, or that another model follows, without waiting for
        them."""
        self._scope.timeline.mark_lost(why)
        holders = self._state.take_holders()
        work = self._context.canceller.cancel_holders(
            self._scope.request_id, self._state.epoch, holders, "replaced"
        )
        self._context.tasks.start(f"cancel-{self._scope.request_id}", work)

    async def cancel_at_end(self, outcome: Outcome) -> None:
        """Cancel at the holders; after a finish only decode needs it, which does not know of a stop
        string."""
        holders: Collection[tuple[str, str]] = self._state.take_holders()
        reason = {"shed": "failed"}.get(outcome.word, outcome.word)
        if isinstance(outcome.error, GatewayStopping):
            reason = "shutdown"
        if outcome.finish:
            reason = "stop"
            stopped = outcome.finish == "stop_string"
            waits = ("decode", self._state.successor)
            holders = [
                holder for holder in holders if holder == waits or (stopped and holder[0] in TARGET_ROLES)
            ]
        last = max(self._state.epoch, self._state.asks)  # nothing follows, at whoever still holds something
        await self._context.canceller.cancel_holders(self._scope.request_id, last, holders, reason)

    def release_stream(self) -> None:
        """Nobody goes on with the stream any more."""
        route = self._state.route
        if self._scope.request.resumable and route is not None:
            work = self._context.canceller.release_stream(
                self._scope.request_id, self._state.epoch, route.decode
            )
            self._context.tasks.start(f"release-{self._scope.request_id}", work)
