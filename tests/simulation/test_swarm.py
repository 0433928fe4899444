"""Seeds of the swarm: what is not wrong is not found; what is wrong is found, made small and told."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from shared.bus.codec import MESSAGE_TYPES, encode
from shared.messages import Accepted, Envelope
from tests.simulation.fleet import GATEWAY
from tests.simulation.found_plans import FOUND
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.draw import draw_plan
from tests.simulation.swarm.faults import message_name
from tests.simulation.swarm.keys import KEYS
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.plan import (
    LOSABLE,
    NEEDED_ROLES,
    OTHER_GATEWAY,
    Edge,
    FaultKind,
    Leaving,
    Plan,
    PlannedCall,
    PlannedFault,
    PlannedNode,
)
from tests.simulation.swarm.play import Played, play
from tests.simulation.swarm.reader import Response
from tests.simulation.swarm.record import Broken
from tests.simulation.swarm.shrink import shrink
from tests.simulation.swarm.story import tell
from tests.simulation.swarm.undisturbed import ask_undisturbed, load, save

SEEDS = (3, 6, 11, 13, 16, 24)
"""Fleets of 5 to 9 workers that crash, hang, drain, are cut off, hear nothing, and lose nats."""
DRAWN = 600

Answers = list[list[Response]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.make(tmp_path_factory.mktemp("swarm"))


@pytest.fixture(scope="module")
def undisturbed(place: Place) -> Answers:
    return ask_undisturbed(place)


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_once_is_mended(what: str, place: Place, undisturbed: Answers) -> None:
    played = play(FOUND[what], place, undisturbed)
    assert not played.broken, tell(played)


@pytest.mark.thorough(but="24 | 13 | 16 | 6")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_breaks_no_property(seed: int, place: Place, undisturbed: Answers) -> None:
    played = play(draw_plan(seed), place, undisturbed)
    assert not played.broken, tell(played)


def test_a_plan_is_the_same_run_again(place: Place, undisturbed: Answers) -> None:
    plan = draw_plan(SEEDS[0])
    one, other = (play(plan, place, undisturbed) for _ in range(2))
    assert (one.digest, one.events) == (other.digest, other.events)


def test_another_text_than_the_undisturbed_one_is_found_and_told(place: Place, undisturbed: Answers) -> None:
    plan = draw_plan(SEEDS[0])
    wrong = deepcopy(undisturbed)
    asked = plan.calls[0].ask
    wrong[asked][0].ids[-1] += 1
    wrong[asked][0].text = f"not {wrong[asked][0].text}"
    played = play(plan, place, wrong)
    assert "the same text as undisturbed" in played.rules
    story = tell(played)
    assert f"seed {plan.seed}" in story
    assert ASKS[asked].what in story
    assert story.splitlines()[-1] == f"trace {played.digest}"


def test_undisturbed_answers_can_be_kept(undisturbed: Answers, tmp_path: Path) -> None:
    save(undisturbed, tmp_path / "answers.json")
    assert load(tmp_path / "answers.json") == undisturbed


def test_seeds_draw_every_kind_of_fault_and_ask_and_client() -> None:
    plans = [draw_plan(seed) for seed in range(DRAWN)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)
    assert {call.ask for plan in plans for call in plan.calls} == set(range(len(ASKS)))
    assert {call.leaving for plan in plans for call in plan.calls} == set(Leaving)
    assert {call.edge for plan in plans for call in plan.calls} == set(Edge)
    assert {call.key for plan in plans for call in plan.calls} == {"", *KEYS}
    assert {call.gateway for plan in plans for call in plan.calls} == {GATEWAY, OTHER_GATEWAY}
    assert [draw_plan(seed) for seed in range(DRAWN)] == plans


def test_messages_are_lost_by_the_names_that_they_have() -> None:
    assert set(LOSABLE) - {"KvChunk"} <= MESSAGE_TYPES.keys()
    assert message_name(b"_INBOX.a.1", encode(Accepted(3), Envelope())) == "Accepted"
    assert message_name(b"penstock.kv.decode-0.17", b"") == "KvChunk"
    assert message_name(b"$SRV.PING", b"") == ""


def test_a_plan_is_made_as_small_as_what_it_breaks_needs() -> None:
    fault = PlannedFault(1.0, FaultKind.CRASH, "decode-7", 0.5, calls=3)
    plan = draw_plan(14)
    plan = replace(plan, faults=(*plan.faults, fault), calls=(*plan.calls, PlannedCall(77, 1.0, 5)))
    plan = replace(plan, nodes=(*plan.nodes, PlannedNode("decode-7", 0.1, 5)))

    def replay(tried: Plan) -> Played:
        """Break a property where both are left."""
        breaks = fault in tried.faults and 77 in [call.number for call in tried.calls]
        broken = [Broken("a rule", "what broke it")] if breaks else []
        return Played(tried, "", [], broken, Counter(), 0.0)

    small = shrink(replay(plan), replay, lambda: True).plan
    assert small.faults == (fault,)
    assert small.calls == (PlannedCall(77, 1.0, 5),)
    assert Counter(node.role for node in small.nodes) == Counter(NEEDED_ROLES)
    assert {node.skew_s for node in small.nodes} == {0.0}
