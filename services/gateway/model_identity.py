"""Which model a request is for: a name is what clients ask by, the digests are what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.gateway.request import served_model
from shared.messages import Heartbeat
from shared.roles import REQUIRED_ROLES


class Announced(Protocol):
    """What is needed of an InstanceView."""

    @property
    def heartbeat(self) -> Heartbeat: ...


@dataclass(frozen=True, slots=True, order=True)
class ModelIdentity:
    """Two folders of one name are two models, as are two versions of one folder: a request keeps to one."""

    name: str
    weights: str = ""
    tokenizer: str = ""

    @classmethod
    def of(cls, worker: Heartbeat) -> ModelIdentity:
        return cls(worker.model, worker.weights_digest, worker.tokenizer_digest)

    def is_served_by(self, beat: Heartbeat) -> bool:
        """A tokenizer or detokenizer has no weights, and serves all models that it can read and write."""
        return (
            beat.model == self.name
            and beat.tokenizer_digest == self.tokenizer
            and beat.weights_digest in ("", self.weights)
        )


def find_model(wanted: str, instances: Callable[[str], Sequence[Announced]]) -> ModelIdentity:
    """The model that `wanted` means, of those that decode workers have.

    Where several have its name, the one for which most of the roles are there, then the one with most decode
    workers. Raises InvalidRequest or NotFound.
    """
    beats = [view.heartbeat for view in instances("decode")]
    name = served_model(wanted, {beat.model for beat in beats})
    workers = Counter(ModelIdentity.of(beat) for beat in beats if beat.model == name)
    if len(workers) == 1:
        return next(iter(workers))

    def preference(model: ModelIdentity) -> tuple[int, int]:
        found = (
            any(model.is_served_by(view.heartbeat) for view in instances(role)) for role in REQUIRED_ROLES
        )
        return sum(found), workers[model]

    return max(sorted(workers), key=preference)
