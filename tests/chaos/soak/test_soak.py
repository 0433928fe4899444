"""What a soak draws, what it lets pass and what not: without a stack."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.client import PenstockError, Shed, StreamLost, Unavailable
from services.launcher.options import parse_options
from tests.chaos.soak import clients as clients_module
from tests.chaos.soak.asks import ASKS, NUMBERS, Door, Heard
from tests.chaos.soak.clients import Clients
from tests.chaos.soak.footprint import (
    BOUNDS,
    BOUNDS_OF_SERVERS,
    LEAST_LOOKS,
    Bound,
    Footprints,
    footprint_of,
    quarters,
)
from tests.chaos.soak.schedule import LONGEST_GAP_S, MAKE, ROLLS_UNTIL, WEIGHTS, Disturbance, Schedule
from tests.chaos.soak.soak import OPTIONS, TENANTS, Tenants
from tests.chaos.world import Models
from tests.support.models import target_model

DOOR = cast(Door, None)
Says = Callable[[Heard], None]


def drawn(seed: int, share: float = 0.0, count: int = 300) -> list[Disturbance]:
    schedule = Schedule(seed)
    return [schedule.draw(share) for _ in range(count)]


def test_a_seed_draws_the_same_again_and_another_one_something_else() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_its_stack_is_one_that_can_be_started(tmp_path: Path) -> None:
    """Nothing but a soak starts it."""
    models = Models(target_model(tmp_path), target_model(tmp_path))
    options = parse_options(models.options(*OPTIONS), {})
    assert options.problems == ()
    assert options.counts["gateway"] == 2


def test_all_kinds_of_things_happen_and_none_is_waited_for_too_long() -> None:
    assert {each.kind for each in drawn(1)} == set(WEIGHTS) == set(MAKE)
    assert max(each.after_s for each in drawn(1)) <= LONGEST_GAP_S


def test_nothing_is_rolled_once_processes_are_to_live_long() -> None:
    assert "roll" not in {each.kind for each in drawn(1, share=ROLLS_UNTIL)}


def test_each_tenant_has_a_key_of_its_own(tmp_path: Path) -> None:
    keys = Tenants.written_to(tmp_path / "keys.toml")
    assert len(set(keys.secrets)) == len(TENANTS)


# ---- what clients judge -------------------------------------------------------------------------------

RIGHT = {
    (kind, number): Heard(text="right", ids=[1, 2], ends=1) for kind in ASKS for number in range(NUMBERS)
}


def judged(
    answer: Says | PenstockError, gone: set[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[str]]:
    """Ask once, for what is answered so, while instances of these roles are ended."""

    async def ask(_door: Door, _number: int, heard: Heard) -> None:
        if isinstance(answer, PenstockError):
            raise answer
        answer(heard)

    async def once() -> Clients:
        clients = Clients([DOOR], RIGHT, 1, 1, gone_since=lambda _: gone)
        await clients._judge("stream", 0, clients._ask("stream", DOOR, 0))
        return clients

    monkeypatch.setitem(ASKS, "stream", ask)
    tally = asyncio.run(once()).tally
    ((_, outcome),) = tally.outcomes
    return outcome, tally.wrong


def says(text: str, ids: list[int], ends: int = 1, positions: tuple[int, ...] = ()) -> Says:
    def answer(heard: Heard) -> None:
        heard.text, heard.ids, heard.ends, heard.positions = text, ids, ends, list(positions)

    return answer


@pytest.mark.parametrize(
    ("answer", "gone", "outcome", "why"),
    [
        (says("right", [1, 2]), set(), "as undisturbed", ""),
        (says("wrong", [1, 2]), {"gateway", "decode"}, "wrong", "another text"),
        (says("right", [1, 3]), set(), "wrong", "another ids"),
        (says("right", [1, 2], ends=2), set(), "wrong", "2 terminal events"),
        (says("right", [1, 2], positions=(5, 7)), set(), "wrong", "positions"),
        (Unavailable("gone"), set(), "wrong", "Unavailable: gone"),
        (Unavailable("gone"), {"gateway"}, "lost with its gateway", ""),
        (StreamLost("nobody has it"), {"gateway"}, "wrong", "StreamLost"),
        (StreamLost("nobody has it"), {"gateway", "decode"}, "lost with its gateway", ""),
        (Shed("full"), set(), "shed", ""),
    ],
)
def test_an_answer_is_judged_by_what_it_would_be_and_by_what_was_ended(
    answer: Says | PenstockError,
    gone: set[str],
    outcome: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, wrong = judged(answer, gone, monkeypatch)
    assert found == outcome
    assert [why in sentence for sentence in wrong] == ([True] if why else [])


def test_a_call_without_an_end_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "LONGEST_CALL_S", 0.01)

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    async def once() -> Clients:
        clients = Clients([DOOR], RIGHT, 1, 1, gone_since=lambda _: set())
        await clients._judge("stream", 0, never())
        return clients

    assert "hangs" in asyncio.run(once()).tally.wrong[0]


# ---- what processes hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [([1, 2, 3, 4], (2, 4)), ([9, 1, 3, 3, 2, 5, 7, 7], (3, 7)), ([1, 2, 3, 4, 5], (2, 5))],
)
def test_the_second_quarter_of_a_life_is_compared_with_the_last(
    values: list[float], found: tuple[float, float]
) -> None:
    assert quarters(values) == found


@pytest.mark.parametrize("what", BOUNDS)
@pytest.mark.parametrize(("name", "bounds"), [("decode-0", BOUNDS), ("nats-server 1", BOUNDS_OF_SERVERS)])
def test_what_grows_beyond_its_bound_is_not_flat(name: str, bounds: dict[str, Bound], what: str) -> None:
    bound = bounds[what]
    for more, flat in ((0.0, True), (1.0, False)):
        footprints = Footprints()
        last = 100.0 * bound.times + bound.more + more
        for value in (0.0, 100.0, 100.0, last):
            footprints.add(name, 1, {what: value})
        assert [(found, holds) for found, _, _, _, _, holds in footprints.judged()] == [(name, flat)]


def test_lives_are_those_of_processes_and_short_ones_say_nothing() -> None:
    footprints = Footprints()
    for pid, grown in itertools.product((1, 2), range(LEAST_LOOKS - 1)):
        footprints.add("decode-0", pid, {"open files": 100.0 * grown})
    assert list(footprints.judged()) == []


def test_a_process_tells_what_it_holds() -> None:
    held = footprint_of(os.getpid(), tasks=3.0)
    assert set(held) == set(BOUNDS)
    assert held["resident MB"] > 1
    assert held["tasks"] == 3.0
