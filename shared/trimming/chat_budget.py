"""Choose the oldest turns of a chat that are left out, so that its prompt is within a budget.

Left out are whole exchanges: a question with all that answered it, calls of tools and their results among
it. What system and developer say stays, and so does the last exchange. Exchanges go by a step of a
quarter of the budget: while a chat grows, its prompts begin alike for as long as the step lasts, and what
was computed of one is there for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.messages import TURNS, ChatTurn, TrimmedPart

KEPT_ROLES = ("system", "developer")
STEP_SHARE = 0.25
"""The part of the budget by which turns are left out together."""
MAX_ROUNDS = 16
"""A prompt is measured anew so often; if it is too long even then, all that may go goes at once."""
TURN_TOKENS = 4
"""The tokens that a template writes around a turn, roughly: what counts is measured with the whole prompt."""


@dataclass(frozen=True, slots=True)
class TrimmedChat:
    """The turns that stay, and what of the chat was left out, None for nothing."""

    turns: tuple[ChatTurn, ...]
    part: TrimmedPart | None = None


def trim_chat(
    turns: Sequence[ChatTurn],
    budget: int,
    tokens_of_prompt: Callable[[Sequence[ChatTurn]], int],
    count_tokens: Callable[[str], int],
) -> TrimmedChat:
    """Return the chat with a prompt of at most `budget` tokens or, where what has to stay is longer, with
    nothing else than that. `tokens_of_prompt` measures the prompt that turns would make."""
    excess = tokens_of_prompt(turns) - budget
    older = exchanges(turns)[:-1]
    if excess <= 0 or not older:
        return TrimmedChat(tuple(turns))
    costs = [sum(_cost(turns[place], count_tokens) for place in exchange) for exchange in older]
    step = max(1, int(STEP_SHARE * budget))
    goal, count, rounds = 0, 0, 0
    while excess > 0 and count < len(older):
        goal, rounds = goal - (-excess // step) * step, rounds + 1
        count = max(count + 1, _reaching(costs, goal)) if rounds <= MAX_ROUNDS else len(older)
        excess = tokens_of_prompt(_without(turns, older[:count])) - budget
    left_out = sum(map(len, older[:count]))
    return TrimmedChat(
        tuple(_without(turns, older[:count])), TrimmedPart(TURNS, left_out, sum(costs[:count]))
    )


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
