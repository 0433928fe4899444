"""The formats in which models write calls of tools: the formats that chat templates teach, and ours for the
others.

Each writes a call as JSON with the name first. Arguments are spaced as Python's `json.dumps` spaces them,
which is how templates render them: a call that comes back in the next prompt is the same tokens again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `head`, name, `middle`, arguments, `tail`.

    `opening` stands before the first call, a space may follow it where it is `spaced`, then comes `begin`;
    `between` stands before each later call ("": there is none), and `end` after the last. Without an
    `opening` an answer is a call when it begins as one. `markers` are those parts that are special
    tokens in the vocabularies of some models.
    """

    name: str
    opening: str
    head: str
    middle: str
    tail: str
    spaced: bool = False
    begin: str = ""
    between: str = ""
    end: str = ""
    markers: tuple[str, ...] = ()


HERMES = ToolFormat(
    name="hermes",
    opening="<tool_call>",
    head='\n{"name": "',
    middle='", "arguments": ',
    tail="}\n</tool_call>",
    between="\n<tool_call>",
    markers=("<tool_call>", "</tool_call>"),
)
"""The format of Hermes, Qwen and others; and of every model whose template teaches none that we know."""
LLAMA = ToolFormat(
    name="llama",
    opening="",
    head='{"name": "',
    middle='", "parameters": ',
    tail="}",
)
"""The format of Llama from 3.1 on: one call, which is the whole answer."""
MISTRAL = ToolFormat(
    name="mistral",
    opening="[TOOL_CALLS]",
    spaced=True,
    begin="[",
    head='{"name": "',
    middle='", "arguments": ',
    tail="}",
    between=", ",
    end="]",
    markers=("[TOOL_CALLS]",),
)
FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in (HERMES, LLAMA, MISTRAL)}

_HERMES_CALL = re.compile(r"<tool_call>(?s:.)*\\?\"arguments\\?\"")
_OTHER_CALL = re.compile(r"<function=|<arg_key>|\[ARGS\]")
_LLAMA_CALL = re.compile(r"\{\\?\"name\\?\": function name, \\?\"parameters\\?\":")


def find_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None where it teaches another one, or none."""
    if _OTHER_CALL.search(template):
        return None
    if MISTRAL.opening in template:
        return MISTRAL
    if _HERMES_CALL.search(template):
        return HERMES
    return LLAMA if _LLAMA_CALL.search(template) else None
