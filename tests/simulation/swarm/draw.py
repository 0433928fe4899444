"""Draw a plan from a seed: first which of all there is, then how much of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.keys import KEYS
from tests.simulation.swarm.plan import (
    LOSABLE,
    NATS,
    OFTEN_LOST,
    OTHER_GATEWAY,
    ROLES,
    Edge,
    FaultKind,
    Leaving,
    Plan,
    PlannedCall,
    PlannedFault,
    PlannedNode,
)
from tests.simulation.swarm.tenancy import may_search

MOST_CALLS = 8
MOST_FAULTS = 6
LASTS_S = (0.5, 1.0, 1.0, 3.0)
"""Calls begin and faults come within so much of the world's time."""
PEACEFUL_SHARE = 0.1
"""The share of seeds in which nothing breaks."""
SEARCHING_SHARE, KEYED_SHARE, OTHER_GATEWAY_SHARE, HTTP_SHARE, RARE_SHARE = 0.3, 0.35, 0.2, 0.5, 0.25
"""The shares of seeds with a retriever, keys, two gateways, calls over HTTP, rare paths."""
METERED_SHARE = 0.25
"""The share of calls, where there are keys, that come with one that is limited."""
MOST = {"decode": 3, "prefill": 3, "speculator": 1}
OPTIONAL_ROLES = ("speculator", "retriever")
WEIGHTS = {FaultKind.CRASH: 4, FaultKind.LOST: 6, FaultKind.LATE: 4, FaultKind.CUT: 3}
WEIGHTS |= {FaultKind.PARTITION: 2, FaultKind.PAUSE: 2}
"""How often a kind is drawn where it is not once."""
MOST_CALLS_TO_BREAK = 200
"""A crash, or a cut, comes up to so many calls of its node after its moment."""
MOST_TO_LOSE = 6
"""Of messages that are lost the first, or one of so many."""
LOSING_SHARE, MOST_LOST = 0.5, 3
"""The share of seeds in which up to so many messages more are lost that each request needs."""
LOST_WITHIN_S = 2.0
"""A message that does not come by then is not lost."""
LONGEST_FAULT_S = {FaultKind.PAUSE: 14.0, FaultKind.PARTITION: 14.0, FaultKind.DEAF: 8.0}
LONGEST_FAULT_S |= {FaultKind.SLOW: 4.0, FaultKind.LATE: 0.6}
"""Leases are 10 s long, and an instance is suspected after 0.75 s. All else lasts up to 2 s."""
GATEWAY_FAULTS = {FaultKind.CRASH, FaultKind.PAUSE, FaultKind.SLOW, FaultKind.CUT, FaultKind.PARTITION}
GATEWAY_FAULTS |= {
    FaultKind.DEAF,
    FaultKind.DROPPED,
    FaultKind.CLOCK_SET,
    FaultKind.DRAIN,
    FaultKind.RESETTLED,
}
OF_ENGINES = {FaultKind.NO_MEMORY, FaultKind.DISK_FULL, FaultKind.NO_TRIALS}
OF_KEYS = {FaultKind.KEY_TAKEN, FaultKind.KEYS_SPOILT}
COUNTED = {FaultKind.CRASH, FaultKind.CUT, FaultKind.NO_MEMORY}
"""These come before a call of their node."""


def draw_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    nodes = _draw_nodes(random)
    searches = any(node.role == "retriever" for node in nodes)
    plan = Plan(
        seed,
        nodes,
        (),
        (),
        kv_blocks=random.choice((40, 256) if searches else (24, 40, 256)),
        max_sequences=random.choice((2, 4, 8)),
        local_prefill_tokens=random.choice((0, 0, 512)),
        batch_tokens=random.choice((512, 512, 48)),
        offloads=random.random() < 0.3,
        rare=random.choice((0.02, 0.1, 0.3)) if random.random() < RARE_SHARE else 0.0,
        gateways=(GATEWAY, OTHER_GATEWAY) if random.random() < OTHER_GATEWAY_SHARE else (GATEWAY,),
        keyed=random.random() < KEYED_SHARE,
    )
    lasts_s = random.choice(LASTS_S)
    return replace(plan, calls=_draw_calls(random, plan, lasts_s), faults=_draw_faults(random, plan, lasts_s))


def _draw_nodes(random: Random) -> tuple[PlannedNode, ...]:
    searches = random.random() < SEARCHING_SHARE
    names = []
    for role in ROLES:
        count = random.randint(0 if role == "speculator" else 1, MOST.get(role, 2))
        names += [f"{role}-{number}" for number in range(count if role != "retriever" or searches else 0)]
    skews = random.random() < 0.5
    return tuple(
        PlannedNode(
            name,
            random.uniform(-1, 1) if skews else 0.0,
            random.randrange(-200_000, 200_000) if skews else 0,
        )
        for name in names
    )


# ---- calls --------------------------------------------------------------------------------------------


def _draw_calls(random: Random, plan: Plan, lasts_s: float) -> tuple[PlannedCall, ...]:
    searches = bool(plan.names("retriever"))
    able = [
        number
        for number, ask in enumerate(ASKS)
        if not ask.corpus or (searches and (plan.keyed or may_search("", ask.corpus)))
    ]
    some = random.sample(able, random.randint(1, 4))
    if searches:
        some.append(random.choice([number for number in able if ASKS[number].corpus]))
    habits = _Habits(random, plan)
    return tuple(
        habits.draw_call(number, random.uniform(0, lasts_s), random.choice(some))
        for number in range(random.randint(2, MOST_CALLS))
    )


class _Habits:
    """What the clients of one plan do, if not all of them."""

    def __init__(self, random: Random, plan: Plan) -> None:
        self._random = random
        self._plan = plan
        self._hurried, self._leaving, self._slow = (random.random() < share for share in (0.3, 0.5, 0.3))
        self._over_http = random.random() < HTTP_SHARE
        self._ways = [one for one in Leaving if plan.keyed or one is not Leaving.FOREIGN]

    def draw_call(self, number: int, at_s: float, ask: int) -> PlannedCall:
        random, hurried = self._random, self._hurried
        return PlannedCall(
            number,
            at_s,
            ask,
            deadline_s=random.expovariate(1 / 0.8) + 0.05 if hurried and random.random() < 0.5 else 0.0,
            ttft_deadline_s=random.expovariate(1 / 0.4) + 0.05 if hurried and random.random() < 0.3 else 0.0,
            leaving=random.choice(self._ways) if self._leaving else Leaving.STAYS,
            leaves_after_s=random.expovariate(1 / 0.2),
            read_pause_s=random.uniform(0.01, 0.3) if self._slow and random.random() < 0.5 else 0.0,
            edge=random.choice(list(Edge)) if self._over_http and ASKS[ask].over_http else Edge.GRPC,
            gateway=random.choice(self._plan.gateways),
            key=self._draw_key(),
        )

    def _draw_key(self) -> str:
        if not self._plan.keyed:
            return ""
        limited = self._random.random() < METERED_SHARE
        return self._random.choice(
            [key.name for key in KEYS.values() if bool(key.requests_per_min) == limited]
        )


# ---- faults -------------------------------------------------------------------------------------------


def _draw_faults(random: Random, plan: Plan, lasts_s: float) -> tuple[PlannedFault, ...]:
    if random.random() < PEACEFUL_SHARE:
        return ()
    able = [kind for kind in FaultKind if _can_come(kind, plan)]
    kinds = random.choices(able, [WEIGHTS.get(kind, 1) for kind in able], k=random.randint(1, 4))
    faults = [
        _draw_fault(random, random.choice(kinds), plan, random.uniform(0, lasts_s))
        for _ in range(random.randint(1, MOST_FAULTS))
    ]
    if random.random() < LOSING_SHARE:
        faults += [
            _draw_loss(random, OFTEN_LOST, random.uniform(0, lasts_s))
            for _ in range(random.randint(1, MOST_LOST))
        ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _can_come(kind: FaultKind, plan: Plan) -> bool:
    if kind is FaultKind.SLOW_SEARCH:
        return bool(plan.names("retriever"))
    if kind is FaultKind.DISK_FULL:
        return plan.offloads
    return plan.keyed if kind in OF_KEYS else True


def _draw_fault(random: Random, kind: FaultKind, plan: Plan, at_s: float) -> PlannedFault:
    longest_s = LONGEST_FAULT_S.get(kind, 2.0)
    seconds = min(random.expovariate(4 / longest_s), longest_s)
    fault = PlannedFault(at_s, kind, _draw_victim(random, kind, plan), seconds)
    if kind in COUNTED:
        return replace(fault, calls=random.randrange(MOST_CALLS_TO_BREAK))
    if kind is FaultKind.LOST:
        return _draw_loss(random, LOSABLE, at_s)
    if kind is FaultKind.KEY_TAKEN:
        return replace(fault, key=random.choice(list(KEYS)), seconds=random.uniform(1.0, 5.0))
    return fault


def _draw_loss(random: Random, messages: tuple[str, ...], at_s: float) -> PlannedFault:
    calls = random.choice((0, random.randrange(MOST_TO_LOSE)))
    return PlannedFault(at_s, FaultKind.LOST, NATS, LOST_WITHIN_S, calls, random.choice(messages))


def _draw_victim(random: Random, kind: FaultKind, plan: Plan) -> str:
    """Return the node that a fault comes to."""
    if kind in (FaultKind.NATS_RESTART, FaultKind.LOST):
        return NATS
    if kind is FaultKind.JOIN:
        return f"{random.choice(ROLES[: 6 if plan.names('retriever') else 5])}-9"
    if kind is FaultKind.SLOW_SEARCH:
        return random.choice(plan.names("retriever"))
    if kind in OF_ENGINES:
        return random.choice(plan.names("prefill") + plan.names("decode"))
    if kind in OF_KEYS or (kind in GATEWAY_FAULTS and random.random() < 0.15):
        return random.choice(plan.gateways)
    return random.choice([node.name for node in plan.nodes])
