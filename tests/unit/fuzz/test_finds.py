"""Inputs that once broke something are refused or taken as they should be, and so are some new ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.fuzz.finds import kept_finds
from tests.fuzz.target import RunOne, Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.trying import Find, seeded, shrunk, try_input

SEED = 1
CHEAP = [each for each in TARGETS.values() if not each.has_stack]


@pytest.fixture(scope="module", params=CHEAP, ids=lambda target: target.name)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Target, RunOne]]:
    target: Target = request.param
    with target.opened() as run_one:
        yield target, run_one


def test_what_was_found_is_mended(opened: tuple[Target, RunOne]) -> None:
    target, run_one = opened
    for path in kept_finds(target.name):
        find = try_input(run_one, path.read_bytes())
        assert find is None, f"{path}:\n{find.report}"


@pytest.mark.thorough(but="grammar | document | checkpoint | settings_file | bus_codec | http_head")
def test_new_inputs_break_nothing(opened: tuple[Target, RunOne]) -> None:
    target, run_one = opened
    for number in range(target.tries):
        find = try_input(run_one, target.make(seeded(target.name, SEED, number)))
        assert find is None, f"try {number}: {find.data[:400]!r}\n{find.report}"


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_a_seed_makes_the_same_inputs_again(target: Target) -> None:
    made = [[target.make(seeded(target.name, seed, number)) for number in range(5)] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_a_find_is_made_small_and_stays_the_same_fault() -> None:
    def run_one(data: bytes) -> None:
        if b"<" in data:
            raise ValueError("one")
        if b">" in data:
            raise KeyError("other")

    data = random.Random(1).randbytes(200).replace(b"<", b".").replace(b">", b".") + b"<>" + b"." * 100
    find = try_input(run_one, data)
    assert find is not None
    small = shrunk(run_one, find)
    assert (small.data, small.kind) == (b"<", find.kind)


def test_what_takes_too_long_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.trying.MAX_CPU_S", 0.05)

    def run_one(_data: bytes) -> None:
        while True:
            pass

    find = try_input(run_one, b"")
    assert isinstance(find, Find)
    assert find.kind == "TookTooLong"
