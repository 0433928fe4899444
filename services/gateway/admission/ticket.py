"""A ticket: a request that wants to be routed, and its place among those of its tenant."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.admission.request_meter import RequestMeter
from services.gateway.fleet.model_identity import ModelIdentity
from shared.deadline import Deadline

AGING_S = 5.0
"""A request that waits rises by one class in this time, so that no class starves."""
CLASSES: dict[int, int] = {pb.PRIORITY_HIGH: 1, pb.PRIORITY_NORMAL: 2, pb.PRIORITY_LOW: 3}
LOWEST_CLASS = max(CLASSES.values())
STARTED_CLASS = 0
"""The class of a request that its client has tokens of: it goes before everything new."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that wants to be routed. `blocks`: the KV blocks that it may come to need. `tokens` are those
    of its prompt, `output_tokens` those that it is expected to draw. `waited_s`: what other calls of the same
    agent have waited before it, which counts as if it had."""

    model: ModelIdentity
    priority_class: int
    deadline: Deadline
    blocks: int
    arrived_s: float
    meter: RequestMeter
    tokens: int = 1
    output_tokens: float = 1.0
    waited_s: float = 0.0
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def tenant(self) -> str:
        return self.meter.share.tenant

    @property
    def is_new(self) -> bool:
        """Whether its client has no token of it yet."""
        return self.priority_class != STARTED_CLASS

    def order(self, now_s: float) -> tuple[int, float, int]:
        """The place within its tenant: the least goes first."""
        risen = int((now_s - self.arrived_s + self.waited_s) / AGING_S)
        priority_class = max(min(self.priority_class, 1), self.priority_class - risen)
        return priority_class, self.deadline.at_s - self.waited_s, self.number
