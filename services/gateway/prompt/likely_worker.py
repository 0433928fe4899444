"""Which worker would compute a prompt if it were placed now."""

from __future__ import annotations

from services.gateway.context import SessionContext
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.placement import Need, choose_placement, leave_out_of_all, missing_role, serving
from services.gateway.fleet.prompt_path import on_shorter_path
from services.gateway.fleet.sent_load import LoadedView
from shared.roles import PLACED_ROLES


def likely_worker(
    context: SessionContext, request_id: str, model: ModelIdentity, need: Need, rotation: int
) -> LoadedView | None:
    """As `Placer` chooses at its first attempt; None where a role has no instance."""
    found = {role: serving(context.fleet.instances(role), role, model) for role in PLACED_ROLES}
    shunned = context.breakers.shunned([view for views in found.values() for view in views], request_id)
    fleet = {
        role: [context.sent_load.with_sent(view) for view in views]
        for role, views in leave_out_of_all(found, shunned).items()
    }
    layouts = [{view.heartbeat.layout for view in fleet[role]} for role in ("prefill", "decode")]
    if missing_role(fleet) or not layouts[0] & layouts[1]:
        return None
    placement = choose_placement({**fleet, "speculator": []}, need, rotation=rotation)
    most_tokens = context.config.local_prefill_tokens
    placement = on_shorter_path(placement, fleet, need, most_tokens=most_tokens)
    instance = placement.instance_of(placement.prompt_role)
    return next(view for view in fleet[placement.prompt_role] if view.heartbeat.instance == instance)
