"""Identify the model of a request: clients ask by its name, its digests say what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.gateway.request.request import known_as, served_model, split_model
from shared.errors import NotFound
from shared.messages import NO_ADAPTER, AdapterId, Heartbeat
from shared.roles import REQUIRED_ROLES, TARGET_ROLES

MAX_NAMED = 16
"""Adapters that an error lists."""


class Announced(Protocol):
    """The parts of an InstanceView that are needed here."""

    @property
    def heartbeat(self) -> Heartbeat: ...


@dataclass(frozen=True, slots=True, order=True)
class ModelIdentity:
    """Two folders of one name are two models, as are two versions of one folder: a request keeps to one. So
    it is with the adapter over it, where it is asked for with one."""

    name: str
    weights: str = ""
    tokenizer: str = ""
    adapter: AdapterId = NO_ADAPTER

    @classmethod
    def of(cls, worker: Heartbeat) -> ModelIdentity:
        """The model of a worker, without an adapter."""
        return cls(worker.model, worker.weights_digest, worker.tokenizer_digest)

    @property
    def base(self) -> ModelIdentity:
        return replace(self, adapter=NO_ADAPTER) if self.adapter.name else self

    @property
    def served_name(self) -> str:
        """The name that clients ask for, and are told."""
        return f"{self.name}:{self.adapter.name}" if self.adapter.name else self.name

    def is_served_by(self, beat: Heartbeat) -> bool:
        """A tokenizer or detokenizer has neither weights nor adapters, and serves all models that it can read
        and write."""
        return (
            beat.model == self.name
            and beat.tokenizer_digest == self.tokenizer
            and beat.weights_digest in ("", self.weights)
            and (
                not self.adapter.name
                or beat.role not in TARGET_ROLES
                or any(AdapterId(each.name, each.digest) == self.adapter for each in beat.worker.adapters)
            )
        )


def hidden_adapters(beats: Iterable[Heartbeat], tenant: str) -> frozenset[tuple[str, str]]:
    """Return the adapters that are not for the tenant, as (model, adapter): one is as soon as all workers
    that have it say so, and is not as soon as one says that."""
    return frozenset(
        (beat.model, each.name) for beat in beats for each in beat.worker.adapters if not each.is_for(tenant)
    )


def waits_for_worker(wanted: str, instances: Callable[[str], Sequence[Announced]]) -> bool:
    """Whether no decode worker has the model that `wanted` means, though other services have it, or there is
    no decode worker at all: one that restarts comes back within seconds."""
    served = {view.heartbeat.model for view in instances("decode")}
    if not served:
        return True
    announced = _announced_models(instances)
    name, _ = split_model(wanted, announced)
    return not known_as(name, served) and bool(known_as(name, announced))


def awaited_model(wanted: str, instances: Callable[[str], Sequence[Announced]]) -> str:
    """Return the model that `wanted` means, of those that some service has which a request needs; "" of
    none."""
    announced = _announced_models(instances)
    name, _ = split_model(wanted, announced)
    return known_as(name, announced)


def _announced_models(instances: Callable[[str], Sequence[Announced]]) -> set[str]:
    return {view.heartbeat.model for role in REQUIRED_ROLES for view in instances(role)}


def find_model(
    wanted: str, instances: Callable[[str], Sequence[Announced]], tenant: str = ""
) -> ModelIdentity:
    """The model that `wanted` means, of those that decode workers have for the tenant.

    Where several have its name, the one for which most of the roles are there, then the one with most decode
    workers. Raises InvalidRequest or NotFound, of another tenant's adapter as of one that is not there.
    """
    beats = [view.heartbeat for view in instances("decode")]
    hidden = hidden_adapters(beats, tenant)
    served = {beat.model for beat in beats}
    model, adapter = split_model(wanted, served)
    name = served_model(model, served)
    named = [beat for beat in beats if beat.model == name]
    workers = Counter(model for beat in named for model in _models_of(beat, adapter, hidden))
    if not workers:
        raise _no_adapter(name, adapter, named, hidden)
    if len(workers) == 1:
        return next(iter(workers))

    def preference(model: ModelIdentity) -> tuple[int, int]:
        found = (
            any(model.is_served_by(view.heartbeat) for view in instances(role)) for role in REQUIRED_ROLES
        )
        return sum(found), workers[model]

    return max(sorted(workers), key=preference)


def with_adapter(
    model: ModelIdentity, adapter: str, instances: Callable[[str], Sequence[Announced]], tenant: str = ""
) -> ModelIdentity:
    """`model` with the adapter of that name over it; as it is where it has one, some role lacks that, or
    that is not for the tenant."""
    if not adapter or model.adapter.name:
        return model
    beats = [view.heartbeat for view in instances("decode")]
    hidden = hidden_adapters(beats, tenant)
    workers = Counter(
        each for beat in beats for each in _models_of(beat, adapter, hidden) if each.base == model
    )
    for found, _ in workers.most_common():
        if all(any(found.is_served_by(view.heartbeat) for view in instances(role)) for role in TARGET_ROLES):
            return found
    return model


def contends(ahead: ModelIdentity, behind: ModelIdentity, workers: Iterable[Announced]) -> bool:
    """Whether every one of `workers` that serves `behind` serves `ahead`, too: then whoever waits for the one
    wants what goes to the other."""
    if ahead == behind:
        return True
    beats = [view.heartbeat for view in workers if behind.is_served_by(view.heartbeat)]
    return ahead.base == behind.base and all(map(ahead.is_served_by, beats))


def _models_of(beat: Heartbeat, adapter: str, hidden: Collection[tuple[str, str]]) -> list[ModelIdentity]:
    """The worker's model, with each adapter of that name that it has loaded and that is not `hidden`; by
    itself where that is ""."""
    model = ModelIdentity.of(beat)
    if not adapter:
        return [model]
    if (beat.model, adapter) in hidden:
        return []
    found = (each for each in beat.worker.adapters if each.name == adapter and each.digest)
    return [replace(model, adapter=AdapterId(each.name, each.digest)) for each in found]


def _no_adapter(
    model: str, wanted: str, workers: Sequence[Heartbeat], hidden: Collection[tuple[str, str]]
) -> NotFound:
    loaded = {each.name for beat in workers for each in beat.worker.adapters if each.digest}
    names = sorted(name for name in loaded if (model, name) not in hidden)
    shown = ", ".join(f"{model}:{name}" for name in names[:MAX_NAMED])
    more = ", …" if len(names) > MAX_NAMED else ""
    there_is = f"send {model} or one of {shown}{more}" if names else f"it has none now, send {model}"
    return NotFound(f"model {model!r} has no adapter {wanted!r}: {there_is}")
