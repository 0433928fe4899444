"""Turns on shared cores: how long work takes beside other work."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from services.cli.capacity.pipeline.core_turns import TURN_S, CoreTurns
from services.cli.capacity.pipeline.cores import CoreUser, OwnCores
from services.cli.capacity.pipeline.event_line import EventLine


class Machine:
    """Cores, and when each piece of work on them was done."""

    def __init__(self, cores: int, turn_s: float = TURN_S) -> None:
        self.line = EventLine()
        self.turns = CoreTurns(self.line, cores, turn_s)
        self.ends_s: dict[str, float] = {}

    def compute(
        self, name: str, alone_s: float, at_s: float = 0.0, cores: float = 1.0, *, first: bool = False
    ) -> CoreUser:
        who = CoreUser(goes_first=first, most_cores=cores)
        self.line.at(at_s, self.turns.compute, who, alone_s, partial(self._note, name))
        return who

    def spend(self, name: str, cpu_s: float, at_s: float = 0.0) -> None:
        self.line.at(at_s, self.turns.spend, cpu_s, self._note, name)

    def play(self) -> dict[str, float]:
        self.line.play()
        return self.ends_s

    def _note(self, name: str) -> None:
        self.ends_s[name] = self.line.now_s


def test_nobody_waits_while_there_are_cores_for_all() -> None:
    machine = Machine(4)
    for name, alone_s in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
        machine.compute(name, alone_s)
    assert machine.play() == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.3})


def test_two_on_one_core_take_turns() -> None:
    machine = Machine(1)
    who = machine.compute("long", 0.1)
    machine.compute("short", 0.02)
    ends_s = machine.play()
    assert ends_s["short"] == pytest.approx(0.04, abs=TURN_S + 1e-9)
    assert ends_s["long"] == pytest.approx(0.12)
    assert (who.alone_s, who.took_s) == pytest.approx((0.1, 0.12))


def test_a_step_beside_a_prompt_waits_for_the_end_of_a_turn() -> None:
    """It comes 1 ms into a turn of 4, and has 2 ms to do."""
    machine = Machine(1)
    machine.compute("prompt", 0.1)
    machine.compute("step", 0.002, at_s=0.001)
    assert machine.play()["step"] == pytest.approx(0.004 + 0.002)


def test_three_threads_have_two_thirds_of_two_cores_each() -> None:
    machine = Machine(2)
    for name in "abc":
        machine.compute(name, 1.0)
    assert all(end_s == pytest.approx(1.5, abs=2 * TURN_S) for end_s in machine.play().values())


def test_small_work_goes_first_and_who_computes_has_the_rest() -> None:
    machine = Machine(1)
    machine.compute("prompt", 0.1)
    machine.spend("small", 0.03, at_s=0.05)
    assert machine.play() == pytest.approx({"small": 0.08, "prompt": 0.13})


def test_threads_of_one_computation_wait_for_each_other() -> None:
    """Of two cores small work has one for 30 ms, and the thread on the other one has to wait as long."""
    machine = Machine(2)
    machine.compute("two threads", 0.1, cores=1.5)
    machine.spend("small", 0.03, at_s=0.05)
    assert machine.play() == pytest.approx({"small": 0.08, "two threads": 0.13})


def test_small_work_waits_for_small_work_where_all_cores_have_some() -> None:
    machine = Machine(2)
    for number in range(3):
        machine.spend(f"{number}", 0.01)
    assert machine.play() == pytest.approx({"0": 0.01, "1": 0.01, "2": 0.02})


def test_decode_has_half_of_the_cores_beside_prefill_and_prefill_the_rest() -> None:
    """Alone a prompt takes 3 of 4 cores; beside a step that takes 2 at most it has 2."""
    machine = Machine(4)
    machine.compute("prompt", 0.2, cores=3.0)
    machine.compute("steps", 0.3, cores=4.0, first=True)
    ends_s = machine.play()
    assert ends_s["prompt"] == pytest.approx(0.3)
    assert ends_s["steps"] == pytest.approx(0.3 + 0.15)


def test_a_worker_that_goes_on_keeps_its_turn() -> None:
    """Its steps follow each other: to end one is no reason to let another one go on."""
    machine, ends_s = Machine(1), list[float]()
    steps = CoreUser(goes_first=True, most_cores=1.0)

    def step() -> None:
        ends_s.append(machine.line.now_s)
        if len(ends_s) < 6:
            machine.turns.compute(steps, 0.0009, step)

    machine.line.at(0.0, machine.turns.compute, steps, 0.0009, step)
    machine.compute("prompt", 0.1)
    machine.play()
    assert ends_s == pytest.approx([0.0009, 0.0018, 0.0027, 0.0036, 0.0085, 0.0094])


def test_shared_evenly_a_core_is_m_g_1_with_a_shared_processor() -> None:
    """The mean time is S / (1 - rho), whatever the law of S (Kleinrock 1967); turns are short beside it."""
    random, machine = Random(5), Machine(1)
    at_s, came = 0.0, dict[str, tuple[float, float]]()
    for number in range(1200):
        at_s += random.expovariate(3.0)
        alone_s = random.choice((0.05, 0.35))
        machine.compute(f"{number}", alone_s, at_s)
        came[f"{number}"] = (at_s, alone_s)
    ends_s = machine.play()
    times_s = [ends_s[name] - came_s for name, (came_s, _) in came.items()]
    assert sum(times_s) / len(times_s) == pytest.approx(0.2 / (1 - 0.6), rel=0.15)


def test_own_cores_never_wait() -> None:
    line, ends_s = EventLine(), list[float]()
    cores = OwnCores(line)
    for alone_s in (0.1, 0.2):
        cores.compute(CoreUser(False, 1.0), alone_s, lambda: ends_s.append(line.now_s))
    cores.spend(0.15, lambda: ends_s.append(line.now_s))
    line.play()
    assert ends_s == pytest.approx([0.1, 0.15, 0.2])
