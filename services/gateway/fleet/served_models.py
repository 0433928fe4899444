"""List what the fleet serves now, as its heartbeats say, and the virtual names for it. For every edge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.gateway.fleet.default_sampling import defaults_in_force
from services.gateway.fleet.model_identity import find_model, hidden_adapters
from services.gateway.request.request import known_as
from shared.bus.fleet import FleetView, InstanceView
from shared.files.virtual_model import VirtualModel
from shared.roles import REQUIRED_ROLES, TARGET_ROLES
from shared.sampling.defaults import SamplingDefault

EMBEDDING_ROLE = "retriever"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`context_tokens` is what every worker takes, 0 while none is ready; `instances` are (role, name).
    `base` is the name of the model that an adapter is over, "" for a model. `default_sampling`: of one that
    generates, one for each of DEFAULTED. `is_default`: a request that names none gets it. `targets`: of a
    virtual name, the models that may answer for it; it can do what all of them can that are there."""

    name: str
    embeds: bool
    context_tokens: int
    has_chat_template: bool
    instances: tuple[tuple[str, str], ...]
    base: str = ""
    default_sampling: tuple[SamplingDefault, ...] = ()
    is_default: bool = False
    targets: tuple[str, ...] = ()

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return what it can be asked for."""
        if self.embeds:
            return ("embed",)
        return ("complete", "chat") if self.has_chat_template else ("complete",)


def served_models(
    fleet: FleetView,
    tenant: str = "",
    default_model: str = "",
    virtual_models: Iterable[VirtualModel] = (),
) -> tuple[ServedModel, ...]:
    """Return the models of decode workers and the virtual names, the default one first and the others by
    name, each before its adapters for the tenant, then those that embed. A model that is alone is the default
    one."""
    beats = [view.heartbeat for view in fleet.instances("decode")]
    hidden = hidden_adapters(beats, tenant)
    generating = {beat.model for beat in beats}
    generating |= {
        f"{beat.model}:{each.name}"
        for beat in beats
        for each in beat.worker.adapters
        if each.digest and (beat.model, each.name) not in hidden
    }
    embedding = {view.heartbeat.model for view in fleet.instances(EMBEDDING_ROLE)}
    found = [_generating_model(fleet, name, tenant) for name in generating]
    found += [_embedding_model(fleet, name) for name in embedding]
    bases = {beat.model for beat in beats}
    default = known_as(default_model, bases) or (next(iter(bases)) if len(bases) == 1 else "")
    virtual = {model.name: model for model in virtual_models}
    default = default_model if default_model in virtual else default
    found = [model for model in found if model.name not in virtual]  # a virtual name counts first
    found += [_virtual(model, found) for model in virtual.values()]
    found = [replace(model, is_default=not model.embeds and model.name == default) for model in found]

    def place(model: ServedModel) -> tuple[bool, bool, str]:  # many clients take the first
        return model.embeds, (model.base or model.name) != default, model.name

    return tuple(sorted(found, key=place))


def _virtual(virtual: VirtualModel, served: Sequence[ServedModel]) -> ServedModel:
    there = [model for model in served if model.name in virtual.targets]
    return ServedModel(
        name=virtual.name,
        embeds=False,
        context_tokens=min((model.context_tokens for model in there), default=0),
        has_chat_template=bool(there) and all(model.has_chat_template for model in there),
        instances=(),
        targets=virtual.targets,
    )


def _generating_model(fleet: FleetView, name: str, tenant: str) -> ServedModel:
    """Return the model that a request gets by a name that several have: no request is served by two."""
    identity = find_model(name, fleet.instances, tenant)
    views = [
        view
        for role in REQUIRED_ROLES
        for view in fleet.instances(role)
        if identity.is_served_by(view.heartbeat)
    ]
    base = identity.name if identity.adapter.name else ""
    described = _described(name, views, TARGET_ROLES, embeds=False, base=base)
    return replace(described, default_sampling=defaults_in_force(identity, fleet.instances))


def _embedding_model(fleet: FleetView, name: str) -> ServedModel:
    views = [view for view in fleet.instances(EMBEDDING_ROLE) if view.heartbeat.model == name]
    return _described(name, views, (EMBEDDING_ROLE,), embeds=True)


def _described(
    name: str, views: list[InstanceView], computing: tuple[str, ...], *, embeds: bool, base: str = ""
) -> ServedModel:
    return ServedModel(
        name=name,
        embeds=embeds,
        context_tokens=_shortest_context(views, computing),
        has_chat_template=any(view.heartbeat.tokenizer.chat_template for view in views),
        instances=tuple((view.heartbeat.role, view.heartbeat.instance) for view in views),
        base=base,
    )


def _shortest_context(views: list[InstanceView], computing: tuple[str, ...]) -> int:
    beats = [view.heartbeat for view in views if view.heartbeat.role in computing]
    return min((beat.context_tokens for beat in beats if beat.context_tokens), default=0)
