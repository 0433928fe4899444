"""Asking instances of a role in turn: who is asked, for how long, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.gateway.fleet.breaker import FAILURES
from services.gateway.fleet.breakers import Breakers
from services.gateway.prompt.role_asker import AGAIN_S, AskTurn, RoleAsker
from services.gateway.regions.regions import Regions, preference
from shared.bus.fleet import FleetView, InstanceView
from shared.deadline import Deadline
from shared.errors import InternalError, InvalidRequest, NoAnswer, Overloaded, PenstockError, Unavailable
from tests.integration.gateway_peers import heartbeat

ROLE = "tokenizer"
LONG_S = 60.0


def view(number: int, live: int = 0) -> InstanceView:
    return InstanceView(heartbeat(ROLE, f"{ROLE}-{number}", live=live), last_seen_s=0.0)


class Asked:
    """Remembers who was asked and until when; `answers` says what each instance does."""

    def __init__(self, answers: Callable[[str], str]) -> None:
        self.answers = answers
        self.instances: list[str] = []
        self.times_s: list[float] = []
        self.turns: list[AskTurn] = []

    async def __call__(self, view: InstanceView, turn: AskTurn) -> str:
        self.instances.append(view.heartbeat.instance)
        self.turns.append(turn)
        self.times_s.append(turn.until.remaining_s())
        return self.answers(view.heartbeat.instance)


def failing(error: PenstockError, *instances: str) -> Callable[[str], str]:
    """The named instances fail, all others answer with their names."""

    def answers(instance: str) -> str:
        if instance in instances:
            raise error
        return instance

    return answers


def asker(*, max_asks: int = 3, turn: int = 0, breakers: Breakers | None = None) -> RoleAsker:
    return RoleAsker(breakers or Breakers("gateway-0", FleetView()), "r", max_asks, turn)


async def ask(
    asker: RoleAsker, asked: Asked, *views: InstanceView, share_s: float = 1.0, end_s: float = LONG_S
) -> str:
    return await asker.ask_any(
        ROLE, lambda: views, asked, share_s=share_s, end=Deadline.after(end_s), wait_s=0.0
    )


async def test_the_least_loaded_one_is_asked_first() -> None:
    asked = Asked(failing(InvalidRequest("never")))
    assert await ask(asker(), asked, view(0, live=2), view(1)) == "tokenizer-1"


async def test_of_equals_the_turn_decides() -> None:
    asked = Asked(failing(InvalidRequest("never")))
    got = [await ask(asker(turn=turn), asked, view(0), view(1)) for turn in range(3)]
    assert got == ["tokenizer-0", "tokenizer-1", "tokenizer-0"]


async def test_who_is_preferred_is_asked_before_others_with_less_load_and_they_once_it_has_failed() -> None:
    regions = Regions("eu", "", FleetView())
    near = InstanceView(heartbeat(ROLE, "tokenizer-near", live=2, region="eu"), last_seen_s=0.0)
    asked = Asked(failing(NoAnswer("silent"), "tokenizer-near"))
    preferring = replace(asker(), prefer=preference(regions))
    assert await ask(preferring, asked, view(0), near) == "tokenizer-0"
    assert asked.instances == ["tokenizer-near", "tokenizer-0"]


async def test_who_trips_a_breaker_is_asked_behind_the_others() -> None:
    breakers, shunned = Breakers("gateway-0", FleetView()), view(0)
    for number in range(FAILURES):
        breakers.begin_trial(shunned, f"r{number}").fail(silent=False)
    asked = Asked(failing(InvalidRequest("never")))
    assert await ask(asker(breakers=breakers), asked, shunned, view(1, live=7)) == "tokenizer-1"


@pytest.mark.parametrize("error", [NoAnswer("silent"), InternalError("broken"), Unavailable("gone")])
async def test_after_a_failure_another_one_is_asked(error: PenstockError) -> None:
    asked = Asked(failing(error, "tokenizer-0"))
    assert await ask(asker(), asked, view(0), view(1)) == "tokenizer-1"
    assert asked.instances == ["tokenizer-0", "tokenizer-1"]


async def test_who_was_full_may_be_asked_again() -> None:
    answers = iter([Overloaded("full"), None])

    def once_full(instance: str) -> str:
        if (error := next(answers)) is not None:
            raise error
        return instance

    assert await ask(asker(), Asked(once_full), view(0)) == "tokenizer-0"


async def test_a_final_error_ends_it_at_once() -> None:
    asked = Asked(failing(InvalidRequest("no such text"), "tokenizer-0"))
    with pytest.raises(InvalidRequest, match="no such text"):
        await ask(asker(), asked, view(0), view(1))
    assert asked.instances == ["tokenizer-0"]


async def test_the_last_error_is_told_when_nobody_answers() -> None:
    asked = Asked(failing(InternalError("broken"), "tokenizer-0", "tokenizer-1"))
    with pytest.raises(InternalError, match="broken"):
        await ask(asker(max_asks=2), asked, view(0), view(1))
    assert len(asked.instances) == 2


async def test_a_passed_end_stops_the_asking() -> None:
    asked = Asked(failing(NoAnswer("silent"), "tokenizer-0"))
    with pytest.raises(NoAnswer):
        await ask(asker(), asked, view(0), view(1), end_s=-1.0)
    assert asked.instances == ["tokenizer-0"]


async def test_while_others_are_left_each_has_its_share_and_the_last_is_asked_again_until_the_end() -> None:
    asked = Asked(failing(InternalError("broken"), "tokenizer-0"))
    await ask(asker(max_asks=2), asked, view(0), view(1), share_s=2.0)
    first, last = asked.turns
    assert first.until.remaining_s() <= last.until.remaining_s() <= 2.0
    assert first.go_on() is None
    later = last.go_on()
    assert later is not None
    assert last.until <= later < last.end
    assert last.end.remaining_s() > LONG_S / 2


async def test_who_is_alone_has_a_share_of_what_is_left_until_another_is_there() -> None:
    views, turns = [view(0)], []

    async def asked(_view: InstanceView, turn: AskTurn) -> str:
        turns.append(turn)
        if turn.go_on() is not None:
            views.append(view(1))
        if turn.go_on() is None:
            return "goes on"
        raise NoAnswer("silent")

    got = await asker().ask_any(
        ROLE, lambda: views, asked, share_s=LONG_S, end=Deadline.after(LONG_S), wait_s=0.0
    )
    assert got == "goes on"
    assert LONG_S / 3 < turns[0].until.remaining_s() <= LONG_S / 2


@pytest.mark.parametrize(("end_s", "again_s"), [(LONG_S, AGAIN_S), (AGAIN_S / 2, AGAIN_S / 2)])
async def test_nobody_is_asked_again_sooner_than_after_a_while_nor_after_the_end(
    end_s: float, again_s: float
) -> None:
    asked = Asked(failing(InvalidRequest("never")))
    await ask(asker(), asked, view(0), share_s=0.001, end_s=end_s)
    assert asked.times_s[0] == pytest.approx(again_s, abs=AGAIN_S / 4)


async def test_a_large_share_is_cut_to_an_equal_part_of_what_is_left() -> None:
    asked = Asked(failing(InvalidRequest("never")))
    await ask(asker(), asked, view(0), view(1), view(2), share_s=LONG_S)
    assert LONG_S / 4 < asked.times_s[0] <= LONG_S / 3


async def test_a_role_without_an_instance_is_named() -> None:
    with pytest.raises(Unavailable, match="no tokenizer instance is ready"):
        await ask(asker(), Asked(failing(InvalidRequest("never"))))
