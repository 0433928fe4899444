"""A model may call the tools that it was told of, and no others."""

from __future__ import annotations

import pytest

from services.gateway.request.tool_use import ToolUse
from shared.errors import InvalidRequest
from shared.messages import Tool
from shared.text.tool_formats import FORMATS

TOOLS = tuple(Tool(name, "", "") for name in ("clock", "weather", "trains"))


def test_a_tool_that_the_model_was_not_told_of_cannot_be_called() -> None:
    use = ToolUse(TOOLS).told_of((0, 2))
    assert use.callable_tools == (TOOLS[0], TOOLS[2])
    assert use.left_out == ("weather",)
    grammar = use.grammar(next(iter(FORMATS.values())), {}).text
    assert "clock" in grammar
    assert "weather" not in grammar


def test_a_model_that_was_told_of_all_may_call_all() -> None:
    assert ToolUse(TOOLS).told_of(()) == ToolUse(TOOLS)
    assert ToolUse(TOOLS).told_of((0, 1, 2)) == ToolUse(TOOLS)


def test_one_that_has_to_be_called_is_the_only_one() -> None:
    assert ToolUse(TOOLS, required=True, name="trains").told_of((1, 2)).callable_tools == (TOOLS[2],)


def test_a_schema_at_fault_is_named_by_its_place_among_the_clients_tools() -> None:
    use = ToolUse(TOOLS).told_of((0, 2))
    error = InvalidRequest("the grammar cannot be used: line 2, column 1: its JSON schema: too deep")
    with pytest.raises(InvalidRequest, match=r"chat\.tools\[2\]\.parameters"):
        raise use.blame(error)
