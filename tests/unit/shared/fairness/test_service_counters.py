"""The Virtual Token Counter: who has had least goes first, and idling saves nothing up."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from shared.fairness.service_counters import MAX_CREDIT, MAX_TENANTS, ServiceCounters
from shared.fairness.share import TenantShare
from shared.fairness.token_cost import prompt_cost, step_cost

A, B = TenantShare("a"), TenantShare("b")


def first(counters: ServiceCounters, *tenants: str) -> str:
    return min(tenants, key=counters.standing)


def test_who_has_had_least_goes_first_and_among_equals_who_was_served_longest_ago() -> None:
    counters = ServiceCounters()
    for tenant in "ab":
        counters.join(tenant)
    counters.charge(A, 10.0)
    assert first(counters, "a", "b") == "b"
    counters.charge(B, 10.0)
    assert first(counters, "b", "a") == "a"
    counters.charge(B, -1.0)
    assert first(counters, "a", "b") == "b"


def test_a_weight_makes_service_count_as_a_part_of_it() -> None:
    counters = ServiceCounters()
    counters.charge(TenantShare("a", weight=4), 40.0)
    counters.charge(B, 11.0)
    assert counters.standing("a")[0] == 10.0
    assert first(counters, "b", "a") == "a"


def test_who_comes_back_from_idling_stands_with_the_least_of_those_who_are_active() -> None:
    counters = ServiceCounters()
    for tenant in "abc":
        counters.join(tenant)
    counters.leave("c")
    counters.charge(A, 500.0)
    counters.charge(B, 700.0)
    assert counters.level("c") == 500.0
    counters.join("c")
    assert counters.standing("c")[0] == 500.0


def test_who_owes_does_not_lose_that_by_a_moments_idling() -> None:
    counters = ServiceCounters()
    for tenant in "ab":
        counters.join(tenant)
    counters.charge(A, 500.0)
    counters.leave("a")
    counters.join("a")
    assert counters.standing("a")[0] == 500.0


def test_what_was_used_while_nobody_wanted_anything_is_owed_to_nobody() -> None:
    counters = ServiceCounters()
    counters.join("a")
    period = counters.period
    counters.charge(A, 500.0)
    counters.leave("a")
    counters.join("b")
    counters.join("a")
    assert counters.standing("a")[0] == counters.standing("b")[0] == 0.0
    assert counters.period == period + 1


def test_what_was_used_while_nobody_wanted_anything_decides_among_equals() -> None:
    """A prompt of who has had much does not go first because it came a moment sooner."""
    counters = ServiceCounters()
    for share, cost in ((B, 20.0), (A, 500.0), (B, 20.0)):
        counters.join(share.tenant)
        counters.charge(share, cost)
        counters.leave(share.tenant)
    counters.join("a")
    counters.join("b")
    assert first(counters, "a", "b") == "b"


@pytest.mark.parametrize(("behind", "credit"), [(MAX_CREDIT, MAX_CREDIT), (MAX_CREDIT + 1, MAX_CREDIT)])
def test_nobody_falls_behind_by_more_than_the_most_credit(behind: float, credit: float) -> None:
    counters = ServiceCounters()
    for tenant in "ab":
        counters.join(tenant)
    counters.charge(A, behind)
    counters.charge(B, 1.0)
    assert counters.standing("a")[0] - counters.standing("b")[0] == credit - 1.0


def test_beyond_the_most_tenants_those_are_forgotten_that_want_nothing_and_owe_least() -> None:
    counters = ServiceCounters()
    counters.join("active")
    for number in range(MAX_TENANTS - 1):
        counters.charge(TenantShare(f"t{number}"), float(number))
    counters.charge(TenantShare("one more"), 1.0)
    assert counters.standing(f"t{MAX_TENANTS - 2}")[0] == MAX_TENANTS - 2
    assert counters.standing("t1")[0] == 0.0
    counters.leave("active")  # it is known: else this would raise


def test_one_tenant_is_alone_until_there_is_another() -> None:
    counters = ServiceCounters()
    counters.join("a")
    assert counters.alone
    counters.charge(B, 1.0)
    assert not counters.alone


# ---- a simulated queue in front of a batch ----------------------------------------------------------

SLOTS = 8


@dataclass(slots=True)
class Job:
    share: TenantShare
    prompt: int
    output: int
    drawn: int = 0


@dataclass(slots=True)
class Tenant:
    """A tenant that always has `backlog` requests waiting, of these lengths in a random order."""

    share: TenantShare
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    backlog: int = 4
    waiting: deque[Job] = field(default_factory=deque)
    service: float = 0.0


class Server:
    """Slots that are filled from the queue before each step; every step draws a token for each."""

    def __init__(self, tenants: list[Tenant], *, fair: bool = True, seed: int = 1) -> None:
        self.counters = ServiceCounters()
        self.tenants = {tenant.share.tenant: tenant for tenant in tenants}
        self.running: list[Job] = []
        self.fair = fair
        self.steps = 0
        self.lag = 0.0
        self._random = random.Random(seed)
        self._arrivals: deque[str] = deque()
        self.refill()

    def add(self, tenant: Tenant) -> None:
        job = Job(tenant.share, self._random.choice(tenant.prompts), self._random.choice(tenant.outputs))
        tenant.waiting.append(job)
        self._arrivals.append(job.share.tenant)
        self.counters.join(job.share.tenant)

    def refill(self) -> None:
        for tenant in self.tenants.values():
            while len(tenant.waiting) < tenant.backlog:
                self.add(tenant)

    def step(self) -> None:
        while len(self.running) < SLOTS and any(tenant.waiting for tenant in self.tenants.values()):
            name = self._next()
            self._arrivals.remove(name)
            job = self.tenants[name].waiting.popleft()
            self.counters.leave(name)
            self._serve(job, prompt_cost(job.prompt))
            self.running.append(job)
            self.refill()
        for job in self.running:
            job.drawn += 1
            self._serve(job, step_cost(1, job.prompt + job.drawn))
        self.running = [job for job in self.running if job.drawn < job.output]
        self.steps += 1

    def _next(self) -> str:
        waiting = [name for name, tenant in self.tenants.items() if tenant.waiting]
        if self.fair:
            return min(waiting, key=self.counters.standing)
        return self._arrivals[0]

    def _serve(self, job: Job, cost: float) -> None:
        self.counters.charge(job.share, cost)
        self.tenants[job.share.tenant].service += cost / job.share.weight


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


SHAPES = [
    ((100,), (50,)),
    ((1000,), (5,)),
    ((10,), (300,)),
    ((10, 2000), (5, 200)),
]


@pytest.mark.parametrize("seed", range(5))
def test_saturated_tenants_of_equal_weight_have_equal_service_whatever_they_ask_for(seed: int) -> None:
    tenants = [
        Tenant(TenantShare(str(number)), *shape, backlog=2 + 9 * (number % 2))
        for number, shape in enumerate(SHAPES)
    ]
    server = Server(tenants, seed=seed)
    for _ in range(4000):
        server.step()
    assert jain([tenant.service for tenant in tenants]) >= 0.99


def test_service_goes_by_weight() -> None:
    tenants = [Tenant(TenantShare(str(weight), weight), (50,), (20,)) for weight in (1, 2, 5)]
    server = Server(tenants)
    for _ in range(3000):
        server.step()
    weighted = [tenant.service for tenant in tenants]
    assert jain(weighted) >= 0.99


@pytest.mark.parametrize("seed", range(5))
def test_two_that_are_backlogged_never_differ_by_more_than_the_paper_says(seed: int) -> None:
    """Theorem 4.4 there: by twice the larger of the longest prompt and of what a full batch holds."""
    tenants = [
        Tenant(TenantShare("short"), (20, 60), (10, 30), backlog=20),
        Tenant(TenantShare("long"), (400, 1500), (50, 200), backlog=1),
    ]
    server = Server(tenants, seed=seed)
    most_of_one = prompt_cost(1500) + sum(step_cost(1, 1500 + drawn) for drawn in range(1, 201))
    for _ in range(5000):
        server.step()
        short, long = (server.counters.standing(name)[0] for name in ("short", "long"))
        assert abs(short - long) <= 2 * SLOTS * most_of_one


@pytest.mark.parametrize("idle", [0, 200, 2000])
def test_a_tenant_that_comes_late_gets_its_part_from_then_on_and_nothing_for_before(idle: int) -> None:
    early, late = (Tenant(TenantShare(name), (50,), (20,)) for name in ("early", "late"))
    late.backlog = 0
    server = Server([early, late])
    for _ in range(idle):
        server.step()
    before = early.service
    late.backlog = 4
    server.refill()
    for _ in range(1000):
        server.step()
    assert jain([early.service - before, late.service]) >= 0.99


def test_the_slots_are_as_full_as_in_order_of_arrival() -> None:
    steps = {}
    for fair in (True, False):
        tenants = [
            Tenant(TenantShare("heavy"), (50,), (20,), 50),
            Tenant(TenantShare("light"), (50,), (20,), 0),
        ]
        server = Server(tenants, fair=fair)
        served = Counter[bool]()
        for number in range(2000):
            if number % 40 == 0:
                server.add(tenants[1])
            server.step()
            served[len(server.running) <= SLOTS] += len(server.running)
        steps[fair] = sum(tenant.service for tenant in tenants)
    assert steps[True] == pytest.approx(steps[False], rel=0.001)


def test_a_tenant_beside_one_with_a_long_line_waits_for_the_next_slots_alone() -> None:
    """Fifty requests wait before it at every time; first come, first served, it would wait for all."""
    waits: dict[bool, list[int]] = {True: [], False: []}
    for fair, waited in waits.items():
        heavy, light = (Tenant(TenantShare(name), (50,), (16,), 0) for name in ("heavy", "light"))
        heavy.backlog = 50
        server = Server([heavy, light], fair=fair)
        for number in range(4000):
            if number % 40 == 0 and not light.waiting:
                server.add(light)
                came = server.steps
            had = len(light.waiting)
            server.step()
            if had and not light.waiting:
                waited.append(server.steps - came)
    assert max(waits[True]) <= 20
    assert min(waits[False]) >= 80


def test_the_weights_of_tokens_order_computed_drawn_and_held() -> None:
    assert prompt_cost(2) == step_cost(1, 0)
    assert step_cost(1, 1000) - step_cost(1, 0) == prompt_cost(1)
    costs = [step_cost(drawn, 100) for drawn in range(1, 9)]
    assert all(later > sooner for sooner, later in pairwise(costs))
