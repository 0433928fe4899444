"""Find the route that a prompt would have if it were routed now, and with it the worker that computes it."""

from __future__ import annotations

import math

from services.gateway.context import SessionContext
from services.gateway.fleet.best_route import BestRoute, best_route
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Need
from shared.errors import Unavailable
from shared.roles import ROUTED_ROLES


def likely_route(
    context: SessionContext,
    request_id: str,
    model: ModelIdentity,
    need: Need,
    rotation: int,
    most_local_tokens: int,
    left_s: float = math.inf,
) -> BestRoute | None:
    """Return the route that `Router` would choose at its first attempt; None where there is none.

    `most_local_tokens`: of the longest prompt that a decode worker may compute itself; `left_s`: the time
    until the first token's deadline.
    """
    routed = {role: context.served.serving(role, model) for role in ROUTED_ROLES}
    shunned = context.breakers.shunned([view for views in routed.values() for view in views], request_id)
    try:
        return best_route(
            routed,
            (),
            need,
            shunned,
            sent_load=context.sent_load,
            most_local_tokens=most_local_tokens,
            rotation=rotation,
            by_place=None
            if context.regions is None
            else context.regions.routing(model, left_s, may_compute_at_decode=most_local_tokens > 0),
        )
    except Unavailable:
        return None
