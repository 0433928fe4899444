"""Choose the tools that a model is told of, within a budget of tokens, by what its user has asked.

Tools that were called before stay, as does one that has to be called. The others are ranked by their words:
those of their names, of what they say of themselves, and of their parameters. What stays keeps its order.

Tools stand at the beginning of a prompt: so a choice is kept for the next message as long as that finds the
tools that it needs among them, and the prompt begins as the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.messages import TOOLS, ChatTurn, Tool, TrimmedPart
from shared.trimming.tool_ranking import ToolRanking

NEEDED_TOOLS = 3
"""A message is taken to need so many tools at most: those that are ranked best for it."""
NEAR_SHARE = 0.6
"""Others than the best one are needed where their scores are this share of its score, or more."""
WEAK_SHARE = 0.15
"""A message needs nothing by a score below this share of the best one for which tools were chosen: it goes on
with what was talked about."""
ASKED_STEP = 16
"""Messages of a user from which tools are chosen: the last ones, from a whole step back on."""
TOOL_TOKENS = 8
"""The tokens that a template writes around a tool, roughly."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The places of the tools that stay, in their order, and what was left out, None for nothing."""

    places: tuple[int, ...]
    part: TrimmedPart | None = None


def choose_tools(
    tools: Sequence[Tool],
    turns: Sequence[ChatTurn],
    budget: int,
    count_tokens: Callable[[str], int],
    named: str = "",
) -> ToolChoice:
    """Return the tools for a chat, within `budget` tokens: at least those that have to stay, or else one.
    `named` has to be called."""
    everyone = tuple(range(len(tools)))
    costs = [
        TOOL_TOKENS + count_tokens(f"{each.name} {each.description} {each.parameters}") for each in tools
    ]
    if sum(costs) <= budget:
        return ToolChoice(everyone)
    called = {call.name for turn in turns for call in turn.tool_calls} | {named}
    kept = {place for place in everyone if tools[place].name in called}
    chosen = _chosen(ToolRanking(tools), asked_by_users(turns), kept, costs, budget)
    gone = [place for place in everyone if place not in chosen]
    part = TrimmedPart(TOOLS, len(gone), sum(costs[place] for place in gone)) if gone else None
    return ToolChoice(tuple(sorted(chosen)), part)


def asked_by_users(turns: Sequence[ChatTurn]) -> list[str]:
    """Return the messages of a user by which tools are chosen: while a chat grows, they begin with the same
    one for as long as a step lasts."""
    asked = [turn.content for turn in turns if turn.role == "user"]
    return asked[max(0, (len(asked) - 1) // ASKED_STEP - 1) * ASKED_STEP :]


def _chosen(
    ranking: ToolRanking, asked: Sequence[str], kept: set[int], costs: Sequence[int], budget: int
) -> set[int]:
    """Return the places of what the first message chose, or the last one that needed another choice."""
    chosen: set[int] = set()
    best = 0.0
    for text in asked or [""]:
        scores = ranking.scores(text)
        ranked = sorted(range(len(costs)), key=lambda place: (-scores[place], place))
        top = scores[ranked[0]]
        least = max(NEAR_SHARE * top, WEAK_SHARE * best)
        needed = {place for place in ranked[:NEEDED_TOOLS] if top and scores[place] >= least}
        if not chosen or not needed <= chosen:
            chosen, best = _fitting(ranked, kept, costs, budget), top
    return chosen


def _fitting(ranked: Sequence[int], kept: set[int], costs: Sequence[int], budget: int) -> set[int]:
    """Return what has to stay and the best ones beside it; one that is too long for what is left is passed
    over."""
    chosen = set(kept)
    left = budget - sum(costs[place] for place in kept)
    for place in ranked:
        if place not in chosen and costs[place] <= left:
            chosen.add(place)
            left -= costs[place]
    return chosen or set(ranked[:1])
