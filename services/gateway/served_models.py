"""What the fleet serves now, as its heartbeats say. For every edge."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus.fleet import FleetView, InstanceView
from shared.roles import REQUIRED_ROLES, TARGET_ROLES

EMBEDDING_ROLE = "retriever"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`context_tokens` is what every worker takes, 0 while none is ready; `instances` are (role, name)."""

    name: str
    embeds: bool
    context_tokens: int
    has_chat_template: bool
    instances: tuple[tuple[str, str], ...]


def served_models(fleet: FleetView) -> tuple[ServedModel, ...]:
    """Those that a decode worker has, by name; then those that a retriever embeds with."""
    generating = {view.heartbeat.model for view in fleet.instances("decode")}
    embedding = {view.heartbeat.model for view in fleet.instances(EMBEDDING_ROLE)}
    found = [_model(fleet, name, REQUIRED_ROLES, TARGET_ROLES, embeds=False) for name in generating]
    found += [_model(fleet, name, (EMBEDDING_ROLE,), (EMBEDDING_ROLE,), embeds=True) for name in embedding]
    return tuple(sorted(found, key=lambda model: (model.embeds, model.name)))  # many clients take the first


def _model(
    fleet: FleetView, name: str, roles: tuple[str, ...], computing: tuple[str, ...], *, embeds: bool
) -> ServedModel:
    views = [view for role in roles for view in fleet.instances(role) if view.heartbeat.model == name]
    return ServedModel(
        name=name,
        embeds=embeds,
        context_tokens=_shortest_context(views, computing),
        has_chat_template=any(view.heartbeat.chat_template for view in views),
        instances=tuple((view.heartbeat.role, view.heartbeat.instance) for view in views),
    )


def _shortest_context(views: list[InstanceView], computing: tuple[str, ...]) -> int:
    beats = [view.heartbeat for view in views if view.heartbeat.role in computing]
    return min((beat.context_tokens for beat in beats if beat.context_tokens), default=0)
