"""Tools beyond a budget are left out: those stay that the user's messages ask for."""

from __future__ import annotations

import pytest

from shared.messages import ChatTurn, Tool, ToolCall, TrimmedPart
from shared.trimming.tool_choice import ASKED_STEP, TOOL_TOKENS, ToolChoice, asked_by_users, choose_tools

NAMES = ("weather", "mail", "flights", "hotels", "music", "lamps", "calendar", "notes")
TOOLS = [Tool(name, f"{name} {name} {name}", "") for name in NAMES]
COST = TOOL_TOKENS + 4
"""The tokens of each of them, counted by words."""


def words(text: str) -> int:
    return len(text.split())


def user(*asked: str) -> list[ChatTurn]:
    return [ChatTurn("user", text) for text in asked]


def chosen(turns: list[ChatTurn], count: int, named: str = "") -> list[str]:
    choice = choose_tools(TOOLS, turns, count * COST, words, named)
    return [NAMES[place] for place in choice.places]


def test_tools_within_the_budget_all_stay() -> None:
    assert choose_tools(TOOLS, user("weather"), len(TOOLS) * COST, words) == ToolChoice(tuple(range(8)))


def test_beyond_it_those_stay_that_are_asked_for_in_the_order_they_had() -> None:
    assert chosen(user("lamps and music"), 2) == ["music", "lamps"]
    choice = choose_tools(TOOLS, user("lamps and music"), 2 * COST, words)
    assert choice.part == TrimmedPart("tools", 6, 6 * COST)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_budget_is_kept(count: int) -> None:
    assert len(chosen(user("hotels"), count)) == count
    assert len(choose_tools(TOOLS, user("hotels"), count * COST + COST - 1, words).places) == count


def test_what_was_called_and_what_has_to_be_called_stays() -> None:
    called = ChatTurn("assistant", "", tool_calls=(ToolCall("1", "notes", "{}"),))
    turns = [*user("notes please"), called, *user("and the weather")]
    assert chosen(turns, 2) == ["weather", "notes"]
    assert chosen(turns, 2, named="mail") == ["mail", "notes"]
    assert chosen(turns, 1, named="mail") == ["mail", "notes"]  # over the budget: both have to stay


def test_one_tool_stays_however_small_the_budget_is() -> None:
    assert choose_tools(TOOLS, user("hotels"), 1, words).places == (3,)
    assert choose_tools(TOOLS, [], 1, words).places == (0,)


def test_a_choice_is_kept_while_it_has_the_tools_that_are_asked_for() -> None:
    both = chosen(user("lamps and music"), 3)
    assert {"lamps", "music"} < {*both}
    assert chosen(user("lamps and music", "music", "lamps"), 3) == both
    assert chosen(user("lamps and music", "and go on with it"), 3) == both
    assert {*chosen(user("lamps and music", "hotels and calendar"), 3)} > {"hotels", "calendar"}


def test_a_tool_that_is_too_long_for_what_is_left_is_passed_over() -> None:
    long = Tool("weather_history", "weather " * 50, "")
    choice = choose_tools([long, *TOOLS], user("weather history"), 2 * COST, words)
    assert [([long, *TOOLS])[place].name for place in choice.places] == ["weather", "mail"]


def test_a_long_chat_chooses_by_its_last_messages_from_a_whole_step_back_on() -> None:
    turns = user(*(str(number) for number in range(100)))
    begins = [asked_by_users(turns[:count])[0] for count in range(1, 101)]
    assert all(len(asked_by_users(turns[:count])) <= 2 * ASKED_STEP for count in range(1, 101))
    assert [int(first) % ASKED_STEP for first in begins] == [0] * 100
    assert len(set(begins)) == 100 // ASKED_STEP
