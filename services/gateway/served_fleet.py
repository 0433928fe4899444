"""Remember what the fleet serves: a request asks for it thirty times, and it hardly ever changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from services.gateway.fleet.default_sampling import defaults_in_force
from services.gateway.fleet.model_identity import ModelIdentity, find_model, waits_for_worker
from services.gateway.fleet.routing import kv_groups, longest_context, serving
from shared.blocks.layer_groups import KvGroups
from shared.bus.fleet import InstanceView
from shared.sampling.defaults import SamplingDefault

MAX_KNOWN = 1024
"""The most answers that are remembered: clients make up names of models. When there are more, all are found
anew."""

T = TypeVar("T")


class Announcing(Protocol):
    """The parts of a FleetView that are needed here."""

    @property
    def announced(self) -> int: ...
    def instances(self, role: str) -> list[InstanceView]: ...


class ServedFleet:
    """Answers that depend on nothing but which instances are ready and what they have announced of their
    models; each is found once, until that changes."""

    def __init__(self, fleet: Announcing) -> None:
        self._fleet = fleet
        self._known: dict[tuple[Hashable, ...], Any] = {}
        self._announced = -1

    def waits_for_worker(self, wanted: str) -> bool:
        """Return whether a request for `wanted` has to wait for a decode worker, as `waits_for_worker`."""
        return self._recall(
            (waits_for_worker, wanted), lambda: waits_for_worker(wanted, self._fleet.instances)
        )

    def find_model(self, wanted: str, tenant: str) -> ModelIdentity:
        """Return the model that `wanted` means; raises what `find_model` raises."""
        return self._recall(
            (find_model, wanted, tenant), lambda: find_model(wanted, self._fleet.instances, tenant)
        )

    def serving(self, role: str, model: ModelIdentity) -> Sequence[InstanceView]:
        """Return the instances of a role that serve `model`."""
        return self._recall(
            (serving, role, model), lambda: tuple(serving(self._fleet.instances(role), role, model))
        )

    def longest_context(self, model: ModelIdentity) -> int:
        """Return the longest context, in tokens, that a worker of each role takes; 0: not known."""
        return self._recall((longest_context, model), lambda: longest_context(self._fleet.instances, model))

    def default_sampling(self, model: ModelIdentity) -> tuple[SamplingDefault, ...]:
        """Return what holds for sampling that a request for `model` leaves open."""
        return self._recall(
            (defaults_in_force, model), lambda: defaults_in_force(model, self._fleet.instances)
        )

    def kv_groups(self, model: ModelIdentity) -> KvGroups:
        """Return the groups of layers in which the decode workers of `model` keep KV."""
        return self._recall((kv_groups, model), lambda: kv_groups(self._fleet.instances("decode"), model))

    def usual_layout(self, model: ModelIdentity) -> str:
        """Return the KV layout that most of the workers of `model` have; "" where there is none."""
        return self._recall(("layout", model), lambda: self._usual_layout(model))

    def _usual_layout(self, model: ModelIdentity) -> str:
        views = self.serving("decode", model)
        layouts = Counter(sorted(view.heartbeat.worker.layout for view in views))
        return max(layouts, key=layouts.__getitem__, default="")

    def _recall(self, what: tuple[Hashable, ...], find: Callable[[], T]) -> T:
        if self._announced != self._fleet.announced or len(self._known) >= MAX_KNOWN:
            self._known.clear()
            self._announced = self._fleet.announced
        try:
            known: T = self._known[what]
        except KeyError:
            known = self._known[what] = find()
        return known
