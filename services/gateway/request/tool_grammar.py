"""Make the grammar of what a model may write that is to call tools, in its own format for calls. Pure.

Free text goes on until a call is opened; from there on everything is held to the format, and the arguments to
the schema of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shared.errors import InvalidRequest
from shared.messages import Tool
from shared.sampling.parameters import JSON_WHITESPACE, Grammar
from shared.text.tool_formats import ToolFormat

MAX_CALLS = 16
"""The most calls in one answer."""
NO_ARGUMENTS = '{"type": "object", "properties": {}}'
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_TEXT = r"/(.|\n)*/"
_TEXT_WITHOUT_BRACE = r"/\s*([^\s{](.|\n)*)?/"
"""The text in front of a call: with a brace it would be one."""
_FAULT = re.compile(r"cannot be used: line (\d+), column \d+: its JSON schema: (.*)$")


def tool_grammar(
    tools: Sequence[Tool],
    tool_format: ToolFormat,
    marker_ids: Mapping[str, int],
    *,
    required: bool,
    parallel: bool,
    answer_schema: str = "",
) -> Grammar:
    """`marker_ids` has those markers of the format that are special tokens; `answer_schema` is the JSON
    Schema of an answer that calls nothing, "": it is any text.

    Line i + 1 is the schema of tool i, and the next one that of the answer: so a worker's error tells whose
    fault it is. Raises InvalidRequest for what is too large, or an answer that cannot be told from a call.
    """
    spell = partial(_spelled, marker_ids=marker_ids)
    rules = [f"arguments_{i}: %json {closed_schema(tool)}" for i, tool in enumerate(tools)]
    calls = f"{spell(tool_format.opening)} {_space(tool_format)} calls"
    if required:
        rules.append(f"start: {calls}")
    elif answer_schema:
        _check_distinct(tool_format)
        rules += [f"answer: %json {_spaced_schema(answer_schema)}", f"start: answer | {calls}"]
    else:
        rules += _text_or_calls(tool_format, marker_ids)
    for i, tool in enumerate(tools):
        head = spell(tool_format.head + tool.name + tool_format.middle)
        rules.append(f"call_{i}: {head} arguments_{i} {spell(tool_format.tail)}")
    rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}")
    several = parallel and tool_format.between
    more = f"({spell(tool_format.between)} call){{0,{MAX_CALLS - 1}}}" if several else ""
    rules.append(f"calls: {spell(tool_format.begin)} call {more} {spell(tool_format.end)}")
    grammar = Grammar("ebnf", "\n".join([*rules, ""]))
    grammar.validate("chat.tools")
    return grammar


def _check_distinct(tool_format: ToolFormat) -> None:
    if not tool_format.opening:
        raise InvalidRequest(
            "chat.tools cannot be called beside an answer of JSON: this model's calls are JSON too; "
            "send one of them"
        )


def _text_or_calls(tool_format: ToolFormat, marker_ids: Mapping[str, int]) -> list[str]:
    """Text in which nothing can be mistaken for the opening of a call, until there is one."""
    opening = tool_format.opening
    spelled, space = _spelled(opening, marker_ids), _space(tool_format)
    if not opening:
        return ["start: TEXT | calls", f"TEXT: {_TEXT_WITHOUT_BRACE}"]
    if opening in marker_ids:
        return [f"start: TEXT ({spelled} {space} calls)?", f"TEXT: {_ANY_TEXT}"]
    return [
        f"start: TEXT | opened {space} calls",
        f"opened[lazy]: TEXT {spelled}",
        f"TEXT: {_ANY_TEXT}",
    ]


def _space(tool_format: ToolFormat) -> str:
    return '" "?' if tool_format.spaced else ""


def _spaced_schema(schema: str) -> str:
    """Return the schema's grammar in one line, with the white space that JSON may have everywhere else."""
    value = json.loads(schema)
    if isinstance(value, dict):
        value |= {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return json.dumps(value)


def closed_schema(tool: Tool) -> str:
    """Return the schema of the arguments with nothing left open, in one line."""
    schema: dict[str, Any] = json.loads(tool.parameters or NO_ARGUMENTS)
    return json.dumps({"additionalProperties": False, **schema, "type": "object", "x-guidance": _SPACING})


def fault_of_schema(fault: str) -> tuple[int, str] | None:
    """The line of the schema that a worker's error is about, from 0, and what is wrong; None: about none."""
    found = _FAULT.search(fault)
    return None if found is None else (int(found[1]) - 1, found[2])


def _spelled(text: str, marker_ids: Mapping[str, int]) -> str:
    """`text` as the grammar's notation has it, special tokens by their ids."""
    if not text:
        return ""
    if not marker_ids:
        return json.dumps(text)
    parts = re.split(f"({'|'.join(map(re.escape, marker_ids))})", text)
    return " ".join(
        f"<[{marker_ids[part]}]>" if part in marker_ids else json.dumps(part) for part in parts if part
    )
