"""When something that does not pay is tried again."""

from __future__ import annotations

from shared.engine.scheduling.probes import FIRST_AFTER, MOST_AFTER, Probes


def steps_until_due(probes: Probes) -> int:
    steps = 1
    while not probes.is_due():
        steps += 1
    return steps


def test_each_try_that_fails_comes_after_twice_as_many_steps_up_to_a_bound() -> None:
    probes = Probes()
    waits = [steps_until_due(probes) for _ in range(7)]
    assert waits == [min(FIRST_AFTER << each, MOST_AFTER) for each in range(7)]
    assert waits[-1] == MOST_AFTER


def test_what_was_of_use_is_soon_tried_again() -> None:
    probes = Probes()
    for _ in range(3):
        steps_until_due(probes)
    probes.is_due()
    probes.succeed()
    assert steps_until_due(probes) == FIRST_AFTER
