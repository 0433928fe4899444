"""Find the worker that would compute a prompt if it were routed now."""

from __future__ import annotations

from services.gateway.context import SessionContext
from services.gateway.fleet.best_route import best_route
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Need, serving
from services.gateway.fleet.sent_load import LoadedView
from shared.errors import Unavailable
from shared.roles import ROUTED_ROLES


def likely_worker(
    context: SessionContext,
    request_id: str,
    model: ModelIdentity,
    need: Need,
    rotation: int,
    most_local_tokens: int,
) -> LoadedView | None:
    """Return the worker that `Router` would choose at its first attempt; None where there is no route.

    `most_local_tokens`: of the longest prompt that a decode worker may compute itself.
    """
    routed = {role: serving(context.fleet.instances(role), role, model) for role in ROUTED_ROLES}
    shunned = context.breakers.shunned([view for views in routed.values() for view in views], request_id)
    try:
        best = best_route(
            routed,
            (),
            need,
            shunned,
            sent_load=context.sent_load,
            most_local_tokens=most_local_tokens,
            rotation=rotation,
        )
    except Unavailable:
        return None
    return best.prompt_worker
