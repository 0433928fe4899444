"""What a seed does to a fleet: its nodes, what clients ask of it and when, and what breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tests.simulation.fleet import GATEWAY

NATS = "nats"
ROLES = ("tokenizer", "detokenizer", "prefill", "decode", "speculator")
NEEDED_ROLES = ROLES[:4]
"""Without one of each of these no request can be served."""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A worker, with how wrong its clocks are."""

    name: str
    skew_s: float
    drift_ppb: int

    @property
    def role(self) -> str:
        return self.name.rpartition("-")[0]


class Leaving(Enum):
    """How a client ends a call itself."""

    STAYS = "stays to the end"
    CANCELS = "cancels it by its id"
    DROPS = "drops the call"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """`ask`: which one of the asks there are. Times are seconds since the fleet was ready, or since the
    call; 0: none."""

    number: int
    at_s: float
    ask: int
    deadline_s: float = 0.0
    ttft_deadline_s: float = 0.0
    leaving: Leaving = Leaving.STAYS
    leaves_after_s: float = 0.0
    read_pause_s: float = 0.0

    @property
    def name(self) -> str:
        return f"client-{self.number}"


class FaultKind(Enum):
    CRASH = "crashes"
    PAUSE = "hangs"
    SLOW = "is slow"
    CUT = "loses its connections"
    PARTITION = "is cut off"
    DEAF = "gets nothing from the bus"
    DROPPED = "is dropped by nats as a slow consumer"
    CLOCK_SET = "has its time of day set"
    DRAIN = "drains"
    JOIN = "joins the fleet"
    NATS_RESTART = "restarts"


HARMLESS = (FaultKind.CLOCK_SET, FaultKind.JOIN)
"""What keeps nobody from serving."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`node` has it at `at_s`, for `seconds`; a crash comes before the `calls`th call of the node after that
    moment, so that it may come at any await."""

    at_s: float
    kind: FaultKind
    node: str
    seconds: float
    calls: int = 0

    def told(self) -> str:
        for_s = f" for {self.seconds:.2f} s" if self.kind is not FaultKind.CUT else ""
        before = f", before its call {self.calls} from now" if self.calls else ""
        return f"{self.node} {self.kind.value}{for_s}{before}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`kv_blocks` and `max_sequences` are those of each engine: a small one has to refuse and to preempt."""

    seed: int
    nodes: tuple[PlannedNode, ...]
    calls: tuple[PlannedCall, ...]
    faults: tuple[PlannedFault, ...]
    kv_blocks: int = 256
    max_sequences: int = 8
    local_prefill_tokens: int = 0

    def stalls_s(self, node: str) -> float:
        """How long this node gets to nothing, of all the time: who waits for it waits as much longer."""
        stalling = (FaultKind.PAUSE, FaultKind.SLOW)
        return sum(one.seconds for one in self.faults if one.node == node and one.kind in stalling)

    @property
    def can_always_serve(self) -> bool:
        """Whether nothing breaks that all requests need, and of each role somebody never does."""
        broken = {one.node for one in self.faults if one.kind not in HARMLESS}
        whole = all(set(self.names(role)) - broken for role in NEEDED_ROLES)
        return whole and broken.isdisjoint((GATEWAY, NATS))

    @property
    def has_room(self) -> bool:
        """Whether one engine of each kind alone could hold all that is asked for."""
        return self.max_sequences >= 8 and self.kv_blocks >= 256

    def names(self, role: str) -> list[str]:
        return [node.name for node in self.nodes if node.role == role]

    def without_node(self, name: str) -> Plan:
        """The plan of a fleet without this one, and without what would happen to it."""
        return replace(
            self,
            nodes=tuple(node for node in self.nodes if node.name != name),
            faults=tuple(fault for fault in self.faults if fault.node != name),
        )
