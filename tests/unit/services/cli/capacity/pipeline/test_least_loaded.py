"""The least loaded of many, beside a look at each."""

from __future__ import annotations

from random import Random

from services.cli.capacity.pipeline.least_loaded import LeastLoaded


def test_it_is_who_a_look_at_each_would_find() -> None:
    random = Random(2)
    loads = dict.fromkeys("abcdefgh", 0)
    line = LeastLoaded(list(loads), lambda name: loads[name])
    for _ in range(500):
        changed = random.choice("abcdefgh")
        loads[changed] = random.randrange(6)
        line.changed(changed)
        barred = random.choice("abcdefgh")
        found = line.least(lambda name, barred=barred: name != barred)  # type: ignore[misc]
        assert found is not None
        assert loads[found] == min(load for name, load in loads.items() if name != barred)


def test_equals_take_turns() -> None:
    line = LeastLoaded(["a", "b", "c"], lambda _: 0.0)
    turns = []
    for _ in range(6):
        turn = line.least()
        assert turn is not None
        turns.append(turn)
        line.changed(turn)
    assert turns == ["a", "b", "c", "a", "b", "c"]


def test_nobody_who_can_is_nobody() -> None:
    line = LeastLoaded(["a"], lambda _: 0.0)
    assert line.least(lambda _: False) is None
    assert line.least() == "a"
