"""Find the worker that would compute a prompt if it were routed now."""

from __future__ import annotations

from services.gateway.context import SessionContext
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.prompt_path import on_shorter_path
from services.gateway.fleet.routing import Need, choose_route, leave_out_of_all, missing_role, serving
from services.gateway.fleet.sent_load import LoadedView
from shared.roles import ROUTED_ROLES


def likely_worker(
    context: SessionContext, request_id: str, model: ModelIdentity, need: Need, rotation: int
) -> LoadedView | None:
    """Return the worker that `Router` would choose at its first attempt; None where a role has no
    instance."""
    found = {role: serving(context.fleet.instances(role), role, model) for role in ROUTED_ROLES}
    shunned = context.breakers.shunned([view for views in found.values() for view in views], request_id)
    fleet = {
        role: [context.sent_load.with_sent(view) for view in views]
        for role, views in leave_out_of_all(found, shunned).items()
    }
    layouts = [{view.heartbeat.layout for view in fleet[role]} for role in ("prefill", "decode")]
    if missing_role(fleet) or not layouts[0] & layouts[1]:
        return None
    route = choose_route({**fleet, "speculator": []}, need, rotation=rotation)
    most_tokens = context.config.local_prefill_tokens
    route = on_shorter_path(route, fleet, need, most_tokens=most_tokens)
    instance = route.instance_of(route.prompt_role)
    return next(view for view in fleet[route.prompt_role] if view.heartbeat.instance == instance)
