"""Tools are ranked by the words of a question, wherever in a tool those stand."""

from __future__ import annotations

import json

import pytest

from shared.messages import Tool
from shared.trimming.tool_ranking import MAX_ASKED_CHARS, MAX_TOOL_CHARS, ToolRanking

WEATHER = Tool("get_weather", "The forecast of a place.", "")
MAIL = Tool("sendMessage", "Writes to somebody.", "")
FLIGHT = Tool(
    "search",
    "Finds connections.",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "departure": {"type": "string", "description": "the airport"},
                "class": {"enum": ["economy", "business"]},
            },
        }
    ),
)
TOOLS = [WEATHER, MAIL, FLIGHT]


def best(asked: str) -> Tool | None:
    scores = ToolRanking(TOOLS).scores(asked)
    top = max(scores)
    return TOOLS[scores.index(top)] if top else None


@pytest.mark.parametrize(
    ("asked", "tool"),
    [
        ("what will the weather be?", WEATHER),
        ("show me the forecast", WEATHER),
        ("send it to Ada", MAIL),
        ("a message for Ada", MAIL),
        ("which airport?", FLIGHT),
        ("departures on Monday", FLIGHT),
        ("in business please", FLIGHT),
        ("hm", None),
        ("", None),
    ],
)
def test_the_tool_with_the_words_of_the_question_is_ranked_first(asked: str, tool: Tool | None) -> None:
    assert best(asked) == tool


def test_a_word_of_a_name_counts_for_more_than_one_that_is_mentioned() -> None:
    mentions = Tool("other", "Like get_weather, but it tells of weather at sea.", "")
    scores = ToolRanking([mentions, WEATHER]).scores("weather")
    assert scores[1] > scores[0] > 0


def test_words_of_json_schema_itself_say_nothing() -> None:
    assert best("an object with a string as its type") is None


@pytest.mark.parametrize("schema", ["{", "[" * 100_000, '"text"', "17", '{"properties": 3}'])
def test_a_schema_that_is_none_says_nothing(schema: str) -> None:
    assert ToolRanking([Tool("look", "", schema), WEATHER]).scores("look")[0] > 0


def test_what_is_beyond_the_bounds_is_not_read() -> None:
    long = Tool("long", "x " * MAX_TOOL_CHARS + "harbour", "")
    assert ToolRanking([long, WEATHER]).scores("harbour") == [0.0, 0.0]
    assert ToolRanking(TOOLS).scores("weather" + " " * MAX_ASKED_CHARS) == [0.0, 0.0, 0.0]
