"""Draw a plan from a seed: first which of all there is, then how much of it."""

from __future__ import annotations

from random import Random

from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.plan import (
    NATS,
    ROLES,
    FaultKind,
    Leaving,
    Plan,
    PlannedCall,
    PlannedFault,
    PlannedNode,
)

MOST_CALLS = 8
MOST_FAULTS = 6
LASTS_S = 1.0
"""Calls begin and faults come within so much of the world's time."""
PEACEFUL_SHARE = 0.1
"""The share of seeds in which nothing breaks."""
WEIGHTS = {FaultKind.CRASH: 3, FaultKind.CUT: 2, FaultKind.PARTITION: 2, FaultKind.PAUSE: 2}
"""How often a kind is drawn where it is not once."""
MOST_CALLS_TO_CRASH = 200
"""A crash comes up to so many calls of its node after its moment."""
LONGEST_FAULT_S = {FaultKind.PAUSE: 14.0, FaultKind.PARTITION: 14.0, FaultKind.DEAF: 8.0, FaultKind.SLOW: 4.0}
"""Leases are 10 s long, and an instance is suspected after 0.75 s. All else lasts up to 2 s."""
GATEWAY_FAULTS = {FaultKind.CRASH, FaultKind.PAUSE, FaultKind.SLOW, FaultKind.CUT, FaultKind.PARTITION}
GATEWAY_FAULTS |= {FaultKind.DEAF, FaultKind.DROPPED, FaultKind.CLOCK_SET}


def draw_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    nodes = _draw_nodes(random)
    return Plan(
        seed,
        nodes,
        _draw_calls(random),
        _draw_faults(random, nodes),
        kv_blocks=random.choice((24, 40, 256)),
        max_sequences=random.choice((2, 4, 8)),
        local_prefill_tokens=random.choice((0, 0, 512)),
    )


def _draw_nodes(random: Random) -> tuple[PlannedNode, ...]:
    most = {"decode": 3, "prefill": 3, "speculator": 1}
    names = [
        f"{role}-{number}"
        for role in ROLES
        for number in range(random.randint(0 if role == "speculator" else 1, most.get(role, 2)))
    ]
    skews = random.random() < 0.5
    return tuple(
        PlannedNode(
            name,
            random.uniform(-1, 1) if skews else 0.0,
            random.randrange(-200_000, 200_000) if skews else 0,
        )
        for name in names
    )


def _draw_calls(random: Random) -> tuple[PlannedCall, ...]:
    hurried, leaving, slow = random.random() < 0.3, random.random() < 0.5, random.random() < 0.3
    some = random.sample(range(len(ASKS)), random.randint(1, 4))
    return tuple(
        _draw_call(random, number, random.choice(some), hurried=hurried, leaving=leaving, slow=slow)
        for number in range(random.randint(2, MOST_CALLS))
    )


def _draw_call(
    random: Random, number: int, ask: int, *, hurried: bool, leaving: bool, slow: bool
) -> PlannedCall:
    leaves = random.choice(list(Leaving)) if leaving else Leaving.STAYS
    return PlannedCall(
        number,
        random.uniform(0, LASTS_S),
        ask,
        deadline_s=random.expovariate(1 / 0.8) + 0.05 if hurried and random.random() < 0.5 else 0.0,
        ttft_deadline_s=random.expovariate(1 / 0.4) + 0.05 if hurried and random.random() < 0.3 else 0.0,
        leaving=leaves,
        leaves_after_s=random.expovariate(1 / 0.2),
        read_pause_s=random.uniform(0.01, 0.3) if slow and random.random() < 0.5 else 0.0,
    )


def _draw_faults(random: Random, nodes: tuple[PlannedNode, ...]) -> tuple[PlannedFault, ...]:
    if random.random() < PEACEFUL_SHARE:
        return ()
    kinds = random.choices(
        list(FaultKind), [WEIGHTS.get(kind, 1) for kind in FaultKind], k=random.randint(1, 4)
    )
    workers = [node.name for node in nodes]
    faults = [
        _draw_fault(random, random.choice(kinds), workers) for _ in range(random.randint(1, MOST_FAULTS))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_fault(random: Random, kind: FaultKind, workers: list[str]) -> PlannedFault:
    if kind is FaultKind.NATS_RESTART:
        node = NATS
    elif kind is FaultKind.JOIN:
        node = f"{random.choice(ROLES)}-9"
    elif kind in GATEWAY_FAULTS and random.random() < 0.15:
        node = GATEWAY
    else:
        node = random.choice(workers)
    longest_s = LONGEST_FAULT_S.get(kind, 2.0)
    seconds = min(random.expovariate(4 / longest_s), longest_s)
    calls = random.randrange(MOST_CALLS_TO_CRASH) if kind is FaultKind.CRASH else 0
    return PlannedFault(random.uniform(0, LASTS_S), kind, node, seconds, calls)
