"""What a model may write that is to call tools: a grammar in its own format for calls. Pure.

Free text goes on until a call is opened; from there on everything is held to the format, and the arguments to
the schema of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shared.messages import Tool
from shared.sampling import Grammar
from shared.text.tool_formats import ToolFormat

MAX_CALLS = 16
"""In one answer."""
NO_ARGUMENTS = '{"type": "object", "properties": {}}'
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_TEXT = r"/(.|\n)*/"
_TEXT_WITHOUT_BRACE = r"/\s*([^\s{](.|\n)*)?/"
"""In front: that would be a call."""
_FAULT = re.compile(r"cannot be used: at (\d+)\(\d+\): failed to compile JSON schema: (.*?)(?: \d+ \|.*)?$")


def tool_grammar(
    tools: Sequence[Tool],
    tool_format: ToolFormat,
    marker_ids: Mapping[str, int],
    *,
    required: bool,
    parallel: bool,
) -> Grammar:
    """`marker_ids` has those markers of the format that are special tokens. Raises InvalidRequest for what is
    too large.

    Line i + 1 is the schema of tool i: so a worker's error tells whose fault it is.
    """
    spell = partial(_spelled, marker_ids=marker_ids)
    lines = [f"arguments_{i}: %json {closed_schema(tool)}" for i, tool in enumerate(tools)]
    for i, tool in enumerate(tools):
        head = spell(tool_format.head + tool.name + tool_format.middle)
        lines.append(f"call_{i}: {head} arguments_{i} {spell(tool_format.tail)}")
    lines.append(f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}")
    more = f"({spell(tool_format.between)} call){{0,{MAX_CALLS - 1}}}" if tool_format.between else ""
    lines.append(
        f"calls: {spell(tool_format.begin)} call {more if parallel else ''} {spell(tool_format.end)}"
    )
    lines += _rules_of_start(tool_format, marker_ids, required=required)
    grammar = Grammar("ebnf", "\n".join([*lines, ""]))
    grammar.validate("chat.tools")
    return grammar


def _rules_of_start(tool_format: ToolFormat, marker_ids: Mapping[str, int], *, required: bool) -> list[str]:
    """What an answer is: calls, or also text, in which nothing can be mistaken for the opening of a call."""
    opening, space = tool_format.opening, '" "?' if tool_format.spaced else ""
    spelled = _spelled(opening, marker_ids)
    if required:
        return [f"start: {spelled} {space} calls"]
    if not opening:
        return ["start: TEXT | calls", f"TEXT: {_TEXT_WITHOUT_BRACE}"]
    if opening in marker_ids:
        return [f"start: TEXT ({spelled} {space} calls)?", f"TEXT: {_ANY_TEXT}"]
    return [
        f"start: TEXT | opened {space} calls",
        f"opened[lazy]: TEXT {spelled}",
        f"TEXT: {_ANY_TEXT}",
    ]


def closed_schema(tool: Tool) -> str:
    """Of the arguments, in one line."""
    schema: dict[str, Any] = json.loads(tool.parameters or NO_ARGUMENTS)
    return json.dumps({"additionalProperties": False, **schema, "type": "object", "x-guidance": _SPACING})


def fault_of_schema(fault: str) -> tuple[int, str] | None:
    """Which tool's schema a worker's error is about, and what is wrong with it; None where it is another."""
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
