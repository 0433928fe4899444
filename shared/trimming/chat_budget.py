"""Choose the oldest turns of a chat that are left out, so that its prompt is within a budget.

Left out are whole exchanges: a question with all that answered it, calls of tools and their results among
it. What system and developer say stays, and so does the last exchange. Exchanges go by a step of a
quarter of the budget: while a chat grows, its prompts begin alike for as long as the step lasts, and what
was computed of one is there for the next. A summary may stand in their place, for which room is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.messages import SUMMARIZED, TURNS, ChatTurn, TrimmedPart
from shared.trimming.chat_summary import summarize_turns

KEPT_ROLES = ("system", "developer")
STEP_SHARE = 0.25
"""The part of the budget by which turns are left out together."""
SUMMARY_SHARE = 0.5
"""The part of the budget that a summary may have at most."""
MAX_ROUNDS = 16
"""A prompt is measured anew so often; if it is too long even then, all that may go goes at once."""
TURN_TOKENS = 4
"""The tokens that a template writes around a turn, roughly: what counts is measured with the whole prompt."""

TokensOfPrompt = Callable[[Sequence[ChatTurn], str], int]
"""(turns, summary): the tokens of a prompt of both; "" is no summary."""


@dataclass(frozen=True, slots=True)
class TrimmedChat:
    """The turns that stay, and what of the chat was left out, None for nothing. `summary` is what is told of
    that, "" for nothing."""

    turns: tuple[ChatTurn, ...]
    part: TrimmedPart | None = None
    summary: str = ""


def trim_chat(
    turns: Sequence[ChatTurn],
    budget: int,
    tokens_of_prompt: TokensOfPrompt,
    count_tokens: Callable[[str], int],
    summary_tokens: int = 0,
) -> TrimmedChat:
    """Return the chat with a prompt of at most `budget` tokens or, where what has to stay is longer, with
    nothing else than that. A summary has at
    most `summary_tokens`, 0 for none."""
    excess = tokens_of_prompt(turns, "") - budget
    older = exchanges(turns)[:-1]
    if excess <= 0 or not older:
        return TrimmedChat(tuple(turns))
    kept_free = min(summary_tokens, int(SUMMARY_SHARE * budget))
    room = budget - kept_free
    excess += kept_free
    costs = [sum(_cost(turns[place], count_tokens) for place in exchange) for exchange in older]
    step = max(1, int(STEP_SHARE * budget))
    goal, count, rounds = 0, 0, 0
    while excess > 0 and count < len(older):
        goal, rounds = goal - (-excess // step) * step, rounds + 1
        count = max(count + 1, _reaching(costs, goal)) if rounds <= MAX_ROUNDS else len(older)
        excess = tokens_of_prompt(_without(turns, older[:count]), "") - room
    gone = [place for exchange in older[:count] for place in exchange]
    left = _without(turns, older[:count])
    summary = summarize_turns([turns[place] for place in gone], kept_free, count_tokens) if kept_free else ""
    if summary and tokens_of_prompt(left, summary) > budget:
        summary = ""
    kind, told = (SUMMARIZED, count_tokens(summary)) if summary else (TURNS, 0)
    part = TrimmedPart(kind, len(gone), max(0, sum(costs[:count]) - told))
    return TrimmedChat(tuple(left), part, summary)


def exchanges(turns: Sequence[ChatTurn]) -> list[list[int]]:
    """Return the places of turns by exchange, without those that always stay; each but the first begins with
    what a user says."""
    found: list[list[int]] = []
    before = ""
    for place, turn in enumerate(turns):
        if turn.role in KEPT_ROLES:
            continue
        if not found or (turn.role == "user" and before != "user"):
            found.append([])
        found[-1].append(place)
        before = turn.role
    return found


def _reaching(costs: Sequence[int], goal: int) -> int:
    """Return how many of the first ones cost `goal` together, or all of them."""
    total = 0
    for count, cost in enumerate(costs, start=1):
        total += cost
        if total >= goal:
            return count
    return len(costs)


def _without(turns: Sequence[ChatTurn], left_out: Sequence[Sequence[int]]) -> list[ChatTurn]:
    gone = {place for exchange in left_out for place in exchange}
    return [turn for place, turn in enumerate(turns) if place not in gone]


def _cost(turn: ChatTurn, count_tokens: Callable[[str], int]) -> int:
    calls = sum(count_tokens(call.arguments) + count_tokens(call.name) for call in turn.tool_calls)
    return TURN_TOKENS + count_tokens(turn.content) + calls
