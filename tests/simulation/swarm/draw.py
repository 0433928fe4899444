"""Draw a plan from a seed: first what it is about, then which of all there is, then how much of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from services.decode.driver import MAX_UNTAKEN_REPORTS
from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.asks import ASKS, Ask
from tests.simulation.swarm.keys import KEYS
from tests.simulation.swarm.plan import (
    LOSABLE,
    NATS,
    NEEDED_ROLES,
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
from tests.simulation.swarm.themes import GOES, SILENT, THEMES, Theme

ALONE_SHARE = 0.6
"""The share of roles that have one worker alone: fleets are small, so that there are many of them."""
MOST_OF_A_ROLE = 2
ROOMY_BLOCKS, ROOMY_SEQUENCES = 256, 8
"""Engines each of which has room for all that is asked for."""
MOST_ASKED_OF_NARROW = 8
"""Of a fleet whose receivers have little credit no more is asked than a worker computes at a time: else those
that have credit could wait for those that have none."""
STEPS_AHEAD = (1, 1, 1, MAX_UNTAKEN_REPORTS)
"""Where the tokens of each step come alone, more can break between two of them."""
MOST_CALLS_TO_BREAK = 200
"""A crash, or a cut, comes up to so many calls of its node after its moment."""
MOST_TO_LOSE = 6
"""Of messages that are lost the first, or one of so many."""
LOST_WITHIN_S = 2.0
"""A message that does not come by then is not lost."""
GONE_FOR_S = 14.0
SILENT_FOR_S = (6.0, 9.0)
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
GATEWAY_SHARE = 0.2
OF_ENGINES = {FaultKind.NO_MEMORY, FaultKind.DISK_FULL, FaultKind.NO_TRIALS}
OF_KEYS = {FaultKind.KEY_TAKEN, FaultKind.KEYS_SPOILT}
COUNTED = {FaultKind.CRASH, FaultKind.CUT, FaultKind.NO_MEMORY}
"""These come before a call of their node."""


def draw_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    theme = random.choices(THEMES, [theme.weight for theme in THEMES])[0]
    plan = _draw_fleet(random, theme, seed)
    lasts_s = random.choice(theme.lasts_s)
    plan = replace(plan, calls=_draw_calls(random, theme, plan, lasts_s))
    asked = sum(ASKS[call.ask].n for call in plan.calls)
    if plan.max_sequences >= 8 and asked <= MOST_ASKED_OF_NARROW and random.random() < theme.narrow:
        plan = replace(plan, narrow=True)
    return replace(plan, faults=_draw_faults(random, theme, plan, lasts_s))


def _draw_fleet(random: Random, theme: Theme, seed: int) -> Plan:
    nodes = _draw_nodes(random, theme)
    searches = any(node.role == "retriever" for node in nodes)
    roomy = random.random() < theme.roomy
    kv_blocks = random.choice((40, 256) if searches else (24, 40, 256))
    max_sequences = random.choice((2, 4, 8))
    return Plan(
        seed,
        nodes,
        (),
        (),
        kv_blocks=ROOMY_BLOCKS if roomy else kv_blocks,
        max_sequences=ROOMY_SEQUENCES if roomy else max_sequences,
        local_prefill_tokens=random.choice((0, 0, 512)),
        batch_tokens=random.choice((512, 512, 48)),
        offloads=random.random() < 0.3,
        rare=random.choice((0.02, 0.1, 0.3)) if random.random() < theme.rare else 0.0,
        gateways=(GATEWAY, OTHER_GATEWAY) if random.random() < theme.two_gateways else (GATEWAY,),
        keyed=random.random() < theme.keyed,
        answers_wait=random.random() < theme.answers_wait,
        slowness=random.choice(theme.slowness),
        steps_ahead=random.choice(STEPS_AHEAD),
    )


def _draw_nodes(random: Random, theme: Theme) -> tuple[PlannedNode, ...]:
    searches = random.random() < theme.searches
    skews = random.random() < 0.5
    names = []
    for role in ROLES:
        least, most = theme.least.get(role, 1), theme.most.get(role, MOST_OF_A_ROLE)
        count = least if random.random() < ALONE_SHARE else random.randint(least, most)
        if role == "speculator":
            count = random.choice((0, 0, 1))
        names += [f"{role}-{number}" for number in range(count if role != "retriever" or searches else 0)]
    return tuple(
        PlannedNode(
            name,
            random.uniform(-1, 1) if skews else 0.0,
            random.randrange(-200_000, 200_000) if skews else 0,
        )
        for name in names
    )


# ---- calls --------------------------------------------------------------------------------------------


def _draw_calls(random: Random, theme: Theme, plan: Plan, lasts_s: float) -> tuple[PlannedCall, ...]:
    searches = bool(plan.names("retriever"))
    able = [
        number
        for number, ask in enumerate(ASKS)
        if not ask.corpus or (searches and (plan.keyed or may_search("", ask.corpus)))
    ]
    if theme.asks:
        able = [number for number in able if any(word in ASKS[number].what for word in theme.asks)]
    some = random.choices(able, [_weight(ASKS[number]) for number in able], k=random.randint(1, 4))
    if searches and any(ASKS[number].corpus for number in able):
        some.append(random.choice([number for number in able if ASKS[number].corpus]))
    habits = _Habits(random, theme, plan)
    return tuple(
        habits.draw_call(number, random.uniform(0, lasts_s), random.choice(some))
        for number in range(random.randint(*theme.calls))
    )


def _weight(ask: Ask) -> int:
    """Of what there are few kinds, each is asked for more often."""
    return 1 + 2 * (ask.n > 1) + 2 * ask.keeps + 4 * (ask.max_tokens == 1) + 2 * ("stop" in ask.sampling)


class _Habits:
    """What the clients of one plan do, if not all of them."""

    def __init__(self, random: Random, theme: Theme, plan: Plan) -> None:
        self._random = random
        self._plan = plan
        shares = (theme.hurried, theme.leaving, theme.reads_slowly, theme.over_http)
        self._hurried, self._leaving, self._slow, self._over_http = (random.random() < one for one in shares)
        self._metered = random.choice((theme.metered, theme.metered, 1.0))
        self._ways = [one for one in Leaving if plan.keyed or one is not Leaving.FOREIGN]

    def draw_call(self, number: int, at_s: float, ask: int) -> PlannedCall:
        random, hurried = self._random, self._hurried
        return PlannedCall(
            number,
            at_s,
            ask,
            deadline_s=random.expovariate(1 / 0.8) + 0.05 if hurried and random.random() < 0.5 else 0.0,
            ttft_deadline_s=random.expovariate(1 / 0.4) + 0.05 if hurried and random.random() < 0.5 else 0.0,
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
        if self._random.random() < self._metered:
            return "metered"
        return self._random.choice([name for name, key in KEYS.items() if not key.requests_per_min])


# ---- faults -------------------------------------------------------------------------------------------


def _draw_faults(random: Random, theme: Theme, plan: Plan, lasts_s: float) -> tuple[PlannedFault, ...]:
    if random.random() < theme.peaceful:
        return ()
    if theme.name == GOES:
        return (PlannedFault(random.uniform(0.3, 1.0), FaultKind.CRASH, OTHER_GATEWAY, GONE_FOR_S, calls=0),)
    if theme.name == SILENT:
        return _draw_silence(random, theme, plan)
    able = [kind for kind in theme.kinds if _can_come(kind, plan)]
    some = random.choices(able, [theme.kinds[kind] for kind in able], k=random.randint(1, 4))
    faults = [
        _draw_fault(random, theme, random.choice(some), plan, random.uniform(0, lasts_s))
        for _ in range(random.randint(*theme.faults))
    ]
    if theme.losses:
        count = random.randint(0 if faults else 1, theme.losses)
        faults += [_draw_loss(random, theme.lost, random.uniform(0, lasts_s)) for _ in range(count)]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_silence(random: Random, theme: Theme, plan: Plan) -> tuple[PlannedFault, ...]:
    """One of several of a role that every request needs is not heard for long."""
    several = [name for role in NEEDED_ROLES if len(names := plan.names(role)) > 1 for name in names]
    victim = random.choice(several or [node.name for node in plan.nodes])
    kind = random.choice(list(theme.kinds))
    return (PlannedFault(random.uniform(0, 1.0), kind, victim, random.uniform(*SILENT_FOR_S)),)


def _can_come(kind: FaultKind, plan: Plan) -> bool:
    if kind is FaultKind.SLOW_SEARCH:
        return bool(plan.names("retriever"))
    if kind is FaultKind.DISK_FULL:
        return plan.offloads
    return plan.keyed if kind in OF_KEYS else True


def _draw_fault(random: Random, theme: Theme, kind: FaultKind, plan: Plan, at_s: float) -> PlannedFault:
    longest_s = LONGEST_FAULT_S.get(kind, 2.0)
    seconds = min(random.expovariate(4 / longest_s), longest_s)
    fault = PlannedFault(at_s, kind, _draw_victim(random, theme, kind, plan), seconds)
    if kind in COUNTED:
        return replace(fault, calls=random.randrange(MOST_CALLS_TO_BREAK))
    if kind is FaultKind.LOST:
        return _draw_loss(random, LOSABLE, at_s)
    if kind in OF_KEYS:  # early, so that calls come when it has been seen
        fault = replace(fault, at_s=at_s * random.random(), seconds=random.uniform(1.0, 5.0))
    if kind is FaultKind.KEY_TAKEN:
        return replace(fault, key=random.choice(plan.calls).key)
    return fault


def _draw_loss(random: Random, messages: tuple[str, ...], at_s: float) -> PlannedFault:
    calls = random.choice((0, random.randrange(MOST_TO_LOSE)))
    return PlannedFault(at_s, FaultKind.LOST, NATS, LOST_WITHIN_S, calls, random.choice(messages))


def _draw_victim(random: Random, theme: Theme, kind: FaultKind, plan: Plan) -> str:
    """Return the node that a fault comes to."""
    if kind in (FaultKind.NATS_RESTART, FaultKind.LOST):
        return NATS
    if kind is FaultKind.JOIN:
        return f"{random.choice(ROLES[: 6 if plan.names('retriever') else 5])}-9"
    if kind is FaultKind.SLOW_SEARCH:
        return random.choice(plan.names("retriever"))
    if kind in OF_ENGINES:
        return random.choice(plan.names("prefill") + plan.names("decode"))
    role = random.choice(theme.at) if theme.at else ""
    to_gateway = role == "gateway" if role else random.random() < GATEWAY_SHARE
    if kind in OF_KEYS or (kind in GATEWAY_FAULTS and to_gateway):
        return random.choice(plan.gateways)
    return random.choice(plan.names(role) or [node.name for node in plan.nodes])
