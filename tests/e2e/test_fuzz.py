"""Inputs that once broke a fleet do so no more, and some new requests and messages break nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.finds import kept_finds
from tests.fuzz.fleet import lent_fleet
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.trying import seeded, try_input

SEED = 1


@pytest.fixture(scope="module", autouse=True)
def fleet() -> Iterator[None]:
    """One for all targets that want no other."""
    with lent_fleet():
        yield


@pytest.mark.thorough(but="grpc_request | http_request | bus_message")
@pytest.mark.parametrize(
    "target", [each for each in TARGETS.values() if each.has_stack], ids=lambda target: target.name
)
def test_a_fleet_takes_what_comes(target: Target) -> None:
    """Leaving `opened` waits until nothing is held anywhere and looks through all that was logged."""
    kept = [(str(path), path.read_bytes()) for path in kept_finds(target.name)]
    made = [target.make(seeded(target.name, SEED, number)) for number in range(target.tries)]
    new = [(f"try {number}", data) for number, data in enumerate(made)]
    with target.opened() as run_one:
        for name, data in (*kept, *new):
            find = try_input(run_one, data)
            assert find is None, f"{name}: {find.data[:400]!r}\n{find.report}"
