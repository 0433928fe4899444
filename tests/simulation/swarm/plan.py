"""What a seed does to a fleet: its nodes, what clients ask of it and when, and what breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from services.decode.driver import MAX_UNTAKEN_REPORTS
from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.keys import KEYS

NATS = "nats"
OTHER_GATEWAY = "gateway-1"
ROLES = ("tokenizer", "detokenizer", "prefill", "decode", "speculator", "retriever")
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
    FOREIGN = "is to be cancelled by another tenant that knows its id"


class Edge(Enum):
    """How a client asks."""

    GRPC = "over gRPC"
    HTTP = "over HTTP"
    EVENTS = "over HTTP, as events"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """`ask`: which one of the asks there are; `key`: the name of its API key, "" where nobody needs one.
    Times are seconds since the fleet was ready, or since the call; 0: none."""

    number: int
    at_s: float
    ask: int
    deadline_s: float = 0.0
    ttft_deadline_s: float = 0.0
    leaving: Leaving = Leaving.STAYS
    leaves_after_s: float = 0.0
    read_pause_s: float = 0.0
    edge: Edge = Edge.GRPC
    gateway: str = GATEWAY
    key: str = ""

    @property
    def name(self) -> str:
        return f"client-{self.number}"

    @property
    def tenant(self) -> str:
        return KEYS[self.key].tenant if self.key else ""


class FaultKind(Enum):
    CRASH = "crashes"
    PAUSE = "hangs"
    SLOW = "is slow"
    CUT = "loses its connections"
    PARTITION = "is cut off"
    DEAF = "gets nothing from the bus"
    LATE = "is heard late"
    DROPPED = "is dropped by nats as a slow consumer"
    CLOCK_SET = "has its time of day set"
    DRAIN = "drains"
    JOIN = "joins the fleet"
    NATS_RESTART = "restarts"
    LOST = "loses a message, with the connection that it was on"
    RESETTLED = "drains, and comes back with other settings"
    NO_MEMORY = "crashes, and gets no memory for its pool when it comes back"
    DISK_FULL = "has no room on its disk"
    NO_TRIALS = "has the process killed that tries its grammars"
    SLOW_SEARCH = "searches slowly"
    KEY_TAKEN = "has a key taken out of its file"
    KEYS_SPOILT = "finds a file of keys that cannot be used"


HARMLESS = {
    *(FaultKind.CLOCK_SET, FaultKind.JOIN, FaultKind.DISK_FULL),
    *(FaultKind.KEY_TAKEN, FaultKind.KEYS_SPOILT),
}
"""What keeps nobody from serving those that have a key."""
QUICK = HARMLESS | {FaultKind.LOST, FaultKind.CUT, FaultKind.DROPPED, FaultKind.LATE}
"""What costs a call no more than that it is asked again, or routed once more."""
KNOWN_AFTER_S = 1.5
"""An instance that has been silent for so long is suspected by everybody."""
ENDS_PROCESSES = {FaultKind.CRASH, FaultKind.DRAIN, FaultKind.RESETTLED, FaultKind.NO_MEMORY}
OFTEN_LOST = (
    *("Accepted", "Open", "Reserve", "Prefill", "Tokens", "Text", "Lost", "Cancel", "CancelAck"),
    *("KvChunk", "KvGrant", "KvDone", "KvReceived", "KvCredit", "KvAbort", "KvAbortAck"),
)
"""The messages that each request has, or each that is cancelled or routed anew."""
LOSABLE = (
    *OFTEN_LOST,
    *("Failure", "Tokenize", "Tokenized", "Retrieve", "Retrieved", "ClientCancel", "LivenessCheck"),
    *("HoldReport", "HandOver", "Successor", "HandOverDone", "AllowSuccessor", "Warm", "PromptLogprobs"),
    *("Heartbeat", "KvMissing", "DraftOpen", "DraftBlock", "DraftCommit", "DraftClose", "DraftResync"),
    *("BeginKeyUses", "KeyUsesBegun", "SettleKeyUse", "ClaimKey", "KeyClaimed"),
    *("LookUpResponse", "ResponseFound", "KeepResponse", "CiteAnswer", "AnswerCited"),
)
"""The messages of which one is lost by name; a KV chunk is none, and has a name here all the same."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`node` has it at `at_s`, for `seconds`. A crash and a cut come before the `calls`th call of the node
    after that moment, so that they may come at any await; a `message` is lost when so many of it have
    come."""

    at_s: float
    kind: FaultKind
    node: str
    seconds: float
    calls: int = 0
    message: str = ""
    key: str = ""

    def told(self) -> str:
        what = f" ({self.key or self.message})" if self.key or self.message else ""
        for_s = f" for {self.seconds:.2f} s" if self.kind is not FaultKind.CUT else ""
        before = f", before its call {self.calls} from now" if self.calls and not self.message else ""
        behind = f", the {self.calls + 1}. that comes" if self.message else ""
        return f"{self.node} {self.kind.value}{what}{for_s}{before}{behind}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`kv_blocks`, `max_sequences` and `batch_tokens` are those of each engine: a small one has to refuse, to
    preempt and to compute in parts. `offloads`: sequences that give way have their KV on disk. `rare`: how
    often a rare path is taken that nothing asks for. `slowness`: steps of engines take so many times as long;
    of `steps_ahead` of them the tokens come together at decode. `narrow`: a decode worker lets one cell of KV
    at a time be on its way to it. `answers_wait`: each answer on the bus waits until there is room for it."""

    seed: int
    nodes: tuple[PlannedNode, ...]
    calls: tuple[PlannedCall, ...]
    faults: tuple[PlannedFault, ...]
    kv_blocks: int = 256
    max_sequences: int = 8
    local_prefill_tokens: int = 0
    batch_tokens: int = 512
    offloads: bool = False
    rare: float = 0.0
    slowness: float = 1.0
    steps_ahead: int = MAX_UNTAKEN_REPORTS
    answers_wait: bool = False
    narrow: bool = False
    gateways: tuple[str, ...] = (GATEWAY,)
    keyed: bool = False

    def stalls_s(self, node: str) -> float:
        """How long this node gets to nothing, of all the time: who waits for it waits as much longer."""
        stalling = (FaultKind.PAUSE, FaultKind.SLOW)
        return sum(one.seconds for one in self.faults if one.node == node and one.kind in stalling)

    @property
    def _broken(self) -> set[str]:
        return {one.node for one in self.faults if one.kind not in HARMLESS}

    @property
    def gateways_are_whole(self) -> bool:
        """Whether nothing breaks between clients, gateways and the bus."""
        return self._broken.isdisjoint((*self.gateways, NATS))

    @property
    def can_always_serve(self) -> bool:
        """Whether nothing breaks that all requests need, and of each role somebody never does."""
        broken = self._broken
        whole = all(set(self.names(role)) - broken for role in NEEDED_ROLES)
        return whole and self.gateways_are_whole

    @property
    def is_quick(self) -> bool:
        """Whether little breaks, and for a moment each time, and there is room for all."""
        return self.has_room and not self.rare and all(one.kind in QUICK for one in self.faults)

    @property
    def step_room(self) -> float:
        """Return how many times as long everything may take, as a step of its engines ends before a job of it
        does."""
        return max(1.0, self.slowness / 10)

    @property
    def may_convict(self) -> bool:
        """Whether a request may see two engines die over it."""
        kinds = [one.kind for one in self.faults]
        return kinds.count(FaultKind.CRASH) > 1 or FaultKind.NO_MEMORY in kinds

    @property
    def loses_once(self) -> bool:
        """Whether one message is lost, and nothing else breaks, where there is room for all."""
        return self.is_quick and [one.kind for one in self.faults] == [FaultKind.LOST]

    def knows_silence(self, began_s: float, ended_s: float) -> bool:
        """Whether all that breaks in this time is one worker of several, of which everybody knows by then."""
        if not self.has_room or len(self.faults) != 1:
            return False
        fault = self.faults[0]
        others = set(self.names(fault.node.rpartition("-")[0])) - {fault.node}
        lasts = fault.at_s + KNOWN_AFTER_S <= began_s and ended_s <= fault.at_s + fault.seconds
        return fault.kind in (FaultKind.PAUSE, FaultKind.PARTITION) and bool(others) and lasts

    @property
    def can_always_search(self) -> bool:
        return bool(set(self.names("retriever")) - self._broken)

    @property
    def has_room(self) -> bool:
        """Whether one engine of each kind alone could hold all that is asked for."""
        refuses = any(one.kind is FaultKind.RESETTLED for one in self.faults)
        return self.max_sequences >= 8 and self.kv_blocks >= 256 and not refuses

    def may_go(self, gateway: str) -> bool:
        """Whether the process of a gateway may end while it is asked."""
        return any(one.node == gateway and one.kind in ENDS_PROCESSES for one in self.faults)

    def changes_key(self, key: str) -> bool:
        return any(one.key == key for one in self.faults if one.kind is FaultKind.KEY_TAKEN)

    def names(self, role: str) -> list[str]:
        return [node.name for node in self.nodes if node.role == role]

    def without_node(self, name: str) -> Plan:
        """The plan of a fleet without this one, and without what would happen to it."""
        return replace(
            self,
            nodes=tuple(node for node in self.nodes if node.name != name),
            faults=tuple(fault for fault in self.faults if fault.node != name),
        )

    def with_one_gateway(self) -> Plan:
        return replace(
            self,
            gateways=(GATEWAY,),
            calls=tuple(replace(call, gateway=GATEWAY) for call in self.calls),
            faults=tuple(fault for fault in self.faults if fault.node not in self.gateways[1:]),
        )
