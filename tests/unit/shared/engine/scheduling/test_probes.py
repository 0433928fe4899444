"""When something that does not pay is tried again."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.probes import FIRST_SAVED, FIRST_TRIES, MOST_SAVED, SAVED_SHARE, Probes, Tries

SOME = 0.1  # of a step
EVERY = round(SOME / SAVED_SHARE) + 1  # steps: a sum of parts is a little less


def tries_in(steps: int, tries: Tries, probes: Probes, *, cost: float = SOME, right: int = 0) -> list[int]:
    """Return the steps of so many in which one is made."""
    made = []
    for step in range(1, steps + 1):
        probes.begin_step()
        if tries.take(cost, 1):
            made.append(step)
            tries.judge(right)
    return made


def spent() -> Probes:
    """Return probes that have nothing left."""
    return Probes(0.0)


def test_at_first_some_tries_are_made_one_after_the_other() -> None:
    probes = Probes()
    assert sum(Tries(probes).take(SOME, 1) for _ in range(20)) == FIRST_TRIES


def test_at_first_no_more_is_spent_than_there_is_whatever_a_try_costs() -> None:
    probes = Probes()
    assert sum(Tries(probes).take(2 * SOME, 1) for _ in range(20)) == FIRST_SAVED // (2 * SOME)


def test_tries_that_are_made_together_are_paid_together_or_not_at_all() -> None:
    probes = Probes()
    assert not probes.take(SOME, SOME, FIRST_TRIES + 1)
    assert probes.take(SOME, SOME, FIRST_TRIES)
    assert not probes.take(SOME, SOME, 1)


@pytest.mark.parametrize("cost", [0.05, 0.3, 0.9])
def test_tries_in_vain_never_cost_more_than_what_is_put_aside(cost: float) -> None:
    probes = Probes()
    made = [tries_in(80, Tries(probes), probes, cost=cost) for _ in range(100)]  # of short-lived sequences
    total = cost * sum(map(len, made))
    assert 0.8 * 8000 * SAVED_SHARE < total <= 8000 * SAVED_SHARE + FIRST_SAVED


def test_a_sequence_whose_tries_fail_waits_ever_longer_and_leaves_something_for_who_comes() -> None:
    probes = spent()
    old = Tries(probes)
    first, second, third = tries_in(6 * EVERY, old, probes)
    assert first == EVERY
    assert min(second - first, third - second) > 1.9 * EVERY
    left = [Tries(probes).take(SOME, 1) for _ in range(6)]
    assert left == [True, True, True, False, False, False]


def test_who_was_of_use_has_paid_for_its_next_try() -> None:
    probes = spent()
    made = tries_in(EVERY + 20, Tries(probes), probes, right=1)
    assert made == list(range(EVERY, EVERY + 21))


def test_what_is_right_beside_a_try_pays_for_none() -> None:
    probes = spent()
    Tries(probes).judge(8)
    assert not Tries(probes).take(SOME, 1)


def test_a_try_of_one_of_many_sequences_costs_and_brings_its_part_of_a_step() -> None:
    probes = spent()
    while not probes.take(SOME / 8, SOME / 8):
        probes.begin_step()
    tries = Tries(probes)
    for _ in range(EVERY // 8 + 1):
        probes.begin_step()
    assert tries.take(SOME, 8)
    tries.judge(1)
    assert sum(Tries(probes).take(SOME, 8) for _ in range(20)) == round(1 / SOME)


@pytest.mark.parametrize("right", [0, 1])
def test_what_costs_more_than_can_be_saved_and_brings_is_tried_seldom(right: int) -> None:
    probes = spent()
    cost = 1.5
    made = tries_in(6000, Tries(probes), probes, cost=cost, right=right)
    assert len(made) == pytest.approx(6000 * SAVED_SHARE / (cost - right), rel=0.1)
    assert made[0] == pytest.approx(MOST_SAVED / SAVED_SHARE, abs=1)
