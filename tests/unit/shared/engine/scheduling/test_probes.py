"""When something that does not pay is tried again."""

from __future__ import annotations

from shared.engine.scheduling.probes import FIRST_AFTER, MOST_AFTER, Probes


def steps_until_due(probes: Probes) -> int:
    """Return how many steps there are up to the next in which what is left out is tried."""
    steps = 0
    while True:
        probes.begin_step()
        steps += 1
        if probes.is_due():
            return steps


def test_each_try_that_fails_comes_after_twice_as_many_steps_up_to_a_bound() -> None:
    probes = Probes()
    waits = [steps_until_due(probes) for _ in range(7)]
    assert waits == [min(FIRST_AFTER << each, MOST_AFTER) for each in range(7)]
    assert waits[-1] == MOST_AFTER


def test_a_try_is_one_for_all_that_are_left_out_in_its_step() -> None:
    probes = Probes()
    steps_until_due(probes)
    assert probes.is_due()
    assert probes.is_due()
    probes.begin_step()
    assert not probes.is_due()


def test_a_try_waits_for_a_step_in_which_something_is_left_out() -> None:
    probes = Probes()
    for _ in range(3 * FIRST_AFTER):
        probes.begin_step()
    assert probes.is_due()
    assert steps_until_due(probes) == 2 * FIRST_AFTER


def test_what_was_of_use_is_soon_tried_again() -> None:
    probes = Probes()
    for _ in range(3):
        steps_until_due(probes)
    probes.begin_step()
    probes.succeed()
    assert steps_until_due(probes) == FIRST_AFTER - 1  # one of these steps was begun before
