"""Turns of the first in a line and the shortest."""

from __future__ import annotations

import random

from shared.fairness.shortest_turns import ShortestTurns

Prompt = tuple[str, int]


def turns() -> ShortestTurns[Prompt]:
    return ShortestTurns(lambda prompt: prompt[1])


def taken(turns: ShortestTurns[Prompt], line: list[Prompt]) -> list[str]:
    """Return who goes, one after another."""
    rest, names = list(line), []
    while rest:
        chosen = turns.next(rest)
        turns.count(rest, [(chosen, chosen[1])])
        rest.remove(chosen)
        names.append(chosen[0])
    return names


def test_short_ones_go_for_as_many_tokens_as_the_long_one_before_them_has() -> None:
    line = [("long", 100), ("a", 40), ("b", 40), ("c", 40), ("d", 40), ("late", 200)]
    assert taken(turns(), line) == ["a", "long", "b", "c", "d", "late"]


def test_a_long_one_is_behind_no_more_tokens_of_shorter_ones_than_it_has_itself() -> None:
    order = turns()
    line = [("long", 100)]
    ahead = 0
    for number in range(100):  # there is always another short one
        line.append((str(number), 30))
        chosen = order.next(line)
        order.count(line, [(chosen, chosen[1])])
        if chosen[0] == "long":
            break
        ahead += chosen[1]
        line.remove(chosen)
    assert ahead <= 100


def test_ones_that_are_as_long_go_as_they_stand() -> None:
    assert taken(turns(), [(name, 7) for name in "abcd"]) == list("abcd")


def test_the_order_of_a_line_is_that_in_which_its_turns_come() -> None:
    chance = random.Random(7)
    for _ in range(200):
        line = [(str(number), chance.randrange(1, 9)) for number in range(chance.randrange(1, 12))]
        order = turns()
        if chance.random() < 0.5:  # one that does not start level
            order.count([("first", 9), ("shortest", 1)], [(("first", 9), 9)])
        assert [name for name, _ in order.in_order(line)] == taken(order, line)


def test_a_turn_that_comes_to_nothing_changes_nothing() -> None:
    order, line = turns(), [("long", 100), ("short", 40)]
    lead = order.count(line, [(line[1], 40)])
    assert order.next(line) == line[0]
    order.take_back(lead)
    assert order.next(line) == line[1]
