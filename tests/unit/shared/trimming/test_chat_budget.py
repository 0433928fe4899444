"""The oldest turns of a chat are left out by whole exchanges, and what it begins with stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from shared.messages import ChatTurn, ToolCall
from shared.trimming.chat_budget import MAX_ROUNDS, TURN_TOKENS, TrimmedChat, exchanges, trim_chat

SYSTEM = ChatTurn("system", "be brief")
LAST = ChatTurn("user", "and now the last question")


def words(text: str) -> int:
    return len(text.split())


def prompt_tokens(turns: Sequence[ChatTurn], summary: str = "") -> int:
    return sum(TURN_TOKENS + words(turn.content) for turn in turns) + words(summary)


def history(count: int, size: int = 10) -> list[ChatTurn]:
    """So many exchanges, each of two turns of `size` words."""
    return [
        ChatTurn(role, " ".join([f"{role}{number}"] * size))
        for number in range(count)
        for role in ("user", "assistant")
    ]


def trimmed(turns: Sequence[ChatTurn], budget: int, summary_tokens: int = 0) -> TrimmedChat:
    return trim_chat(turns, budget, prompt_tokens, words, summary_tokens)


def test_a_chat_within_its_budget_stays_as_it_is() -> None:
    turns = [SYSTEM, *history(3), LAST]
    assert trimmed(turns, prompt_tokens(turns)) == TrimmedChat(tuple(turns))


@pytest.mark.parametrize("budget", [150, 100, 60])
def test_the_oldest_exchanges_go_until_the_prompt_fits(budget: int) -> None:
    turns = [SYSTEM, *history(8), LAST]
    left = trimmed(turns, budget)
    assert prompt_tokens(left.turns) <= budget
    assert left.turns[0] == SYSTEM
    assert left.turns[1:] == tuple(turns[len(turns) - len(left.turns) + 1 :])
    assert left.part is not None
    assert left.part.count == len(turns) - len(left.turns)
    assert left.part.tokens == prompt_tokens(turns) - prompt_tokens(left.turns)


def test_what_has_to_stay_stays_however_small_the_budget_is() -> None:
    asked = ChatTurn("developer", "in English")
    left = trimmed([SYSTEM, *history(2), asked, LAST], 1)
    assert left.turns == (SYSTEM, asked, LAST)
    assert trimmed([SYSTEM, LAST], 1) == TrimmedChat((SYSTEM, LAST))


def test_a_call_goes_with_its_result_and_stays_with_it() -> None:
    call = ChatTurn("assistant", "", tool_calls=(ToolCall("1", "look", "{}"),))
    result = ChatTurn("tool", "rain " * 20, tool_call_id="1")
    older = [ChatTurn("user", "how is it?"), call, result, ChatTurn("assistant", "wet")]
    assert trimmed([*older, LAST], 20).turns == (LAST,)
    running = [LAST, call, result]
    assert trimmed([*older, *running], 20).turns == tuple(running)


def test_an_exchange_begins_with_what_a_user_says_after_others() -> None:
    turns = [
        ChatTurn("assistant", "hello"),
        SYSTEM,
        *history(1),
        ChatTurn("user", "one"),
        ChatTurn("user", "two"),
    ]
    assert exchanges(turns) == [[0], [2, 3], [4, 5]]


def test_while_a_chat_grows_its_prompts_mostly_begin_alike() -> None:
    turns = history(30)
    firsts = [trimmed([SYSTEM, *turns[: 2 * count], LAST], 300).turns[1] for count in range(12, 30)]
    changes = sum(one != other for one, other in pairwise(firsts))
    assert changes <= 7  # of 17: one for each step of a quarter of the budget, not one for each exchange


def test_a_prompt_that_gets_no_shorter_is_measured_a_few_times_alone() -> None:
    """A template may write nothing of a turn."""
    measured: list[int] = []

    def as_long_as_ever(turns: Sequence[ChatTurn], _summary: str) -> int:
        measured.append(len(turns))
        return 17

    left = trim_chat([*history(100 * MAX_ROUNDS), LAST], 16, as_long_as_ever, words)
    assert left.turns == (LAST,)
    assert len(measured) <= MAX_ROUNDS + 2


def told_facts(count: int) -> list[ChatTurn]:
    return [
        turn
        for number in range(count)
        for turn in (
            ChatTurn("user", f"Parcel {number} is for Berlin. Where is it?"),
            ChatTurn("assistant", f"Parcel {number} left the harbour on day {number}."),
        )
    ]


def test_a_summary_stands_in_the_place_of_turns_and_within_the_budget() -> None:
    turns = [SYSTEM, *told_facts(8), LAST]
    budget = prompt_tokens(turns) - 40
    left = trimmed(turns, budget, summary_tokens=30)
    assert 0 < words(left.summary) <= 30
    assert prompt_tokens(left.turns, left.summary) <= budget
    assert left.part is not None
    assert left.part.what == "summarized"
    assert left.part.count == len(turns) - len(left.turns)
    assert left.part.tokens == prompt_tokens(turns) - prompt_tokens(left.turns) - words(left.summary)


def test_room_that_is_too_small_for_a_sentence_is_told_as_turns_that_are_left_out() -> None:
    turns = [SYSTEM, *told_facts(8), LAST]
    left = trimmed(turns, prompt_tokens(turns) - 40, summary_tokens=5)
    assert left.summary == ""
    assert left.part is not None
    assert left.part.what == "turns"


def test_a_summary_has_half_of_the_budget_at_most() -> None:
    turns = [SYSTEM, *told_facts(20), LAST]
    left = trimmed(turns, 100, summary_tokens=1000)
    assert 0 < words(left.summary) <= 50
    assert prompt_tokens(left.turns, left.summary) <= 100


def test_while_a_chat_grows_its_summary_stays_the_same_for_a_step() -> None:
    turns = told_facts(40)
    chats = [trimmed([SYSTEM, *turns[: 2 * count], LAST], 300, 40) for count in range(14, 40)]
    begins = [(each.summary, each.turns[1]) for each in chats]
    assert all(each.summary for each in chats)
    assert sum(one != other for one, other in pairwise(begins)) <= 9  # of 25
