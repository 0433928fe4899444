"""Turns that are left out are told by their sentences that say most, word by word and within a budget."""

from __future__ import annotations

import pytest

from shared.messages import ChatTurn, ToolCall
from shared.trimming.chat_summary import HEAD, summarize_turns, with_summary

TRIP = [
    ChatTurn("user", "My name is Ada and I plan a trip to Lisbon in May. What is the weather like?"),
    ChatTurn("assistant", "Hello! In May Lisbon has about 22 degrees. Shall I say more?"),
    ChatTurn("user", "And which tram goes to the castle of Lisbon?"),
    ChatTurn("assistant", "", tool_calls=(ToolCall("1", "find_tram", '{"to": "castle"}'),)),
    ChatTurn("tool", '{"tram": 28, "minutes": 17}', tool_call_id="1"),
    ChatTurn("assistant", "Tram 28 goes up to the castle of Lisbon. Have fun."),
]


def words(text: str) -> int:
    return len(text.split())


def test_who_said_what_is_told_in_the_order_of_the_chat() -> None:
    lines = summarize_turns(TRIP, 40, words).splitlines()
    assert lines[0] == HEAD
    assert lines[1].startswith("user: My name is Ada and I plan a trip to Lisbon in May.")
    assert lines[-1].startswith("assistant: Tram 28 goes up to the castle of Lisbon.")


@pytest.mark.parametrize("budget", range(0, 45, 3))
def test_it_is_never_longer_than_its_budget_and_empty_where_nothing_fits(budget: int) -> None:
    summary = summarize_turns(TRIP, budget, words)
    assert words(summary) <= budget
    assert bool(summary) == (budget >= 12)


def test_the_sentences_that_say_most_stay() -> None:
    summary = summarize_turns(TRIP, 30, words)
    assert "castle of Lisbon" in summary
    assert "Have fun." not in summary


def test_questions_and_what_tools_answered_are_not_told() -> None:
    summary = summarize_turns(TRIP, 1000, words)
    assert "?" not in summary
    assert "minutes" not in summary


def test_what_was_said_twice_is_told_once() -> None:
    said = ChatTurn("user", "The parcel has the number 4711 and is late.")
    assert summarize_turns([said, *TRIP, said], 1000, words).count("4711") == 1


def test_nothing_is_told_of_turns_that_say_nothing() -> None:
    assert summarize_turns([], 100, words) == ""
    assert summarize_turns([ChatTurn("user", "Why?"), ChatTurn("tool", "{}")], 100, words) == ""


def test_a_summary_stands_in_front_of_what_a_user_says_first() -> None:
    rest = [ChatTurn("system", "be brief"), ChatTurn("user", "and now?"), ChatTurn("user", "well?")]
    told = with_summary(rest, "Earlier: x")
    assert [turn.content for turn in told] == ["be brief", "Earlier: x\n\nand now?", "well?"]
    assert with_summary(rest, "") == rest
    assert with_summary(rest[:1], "Earlier: x") == rest[:1]
