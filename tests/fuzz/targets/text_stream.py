"""Text that comes in parts: calls of tools and stop strings are the same however the text is cut."""

from __future__ import annotations

import random

from shared.errors import InvalidRequest
from shared.text.stops import StopMatcher
from shared.text.tool_formats import FORMATS
from tests.fuzz.mutation import mutated_text
from tests.fuzz.target import Fault, Target, in_memory
from tests.support.tool_call_stream import read_calls

ARGUMENTS = '{"q": "a } \\" ] {", "deep": [{"x": [1, 2]}]}'
WORDS = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    '{"name": "',
    '", "arguments": ',
    "{",
    "}",
    '"',
    "\\",
    "\n",
    " ",
)
MAX_CHARS = 400
"""Every place to cut is tried, each in time of its length."""


def make(rng: random.Random) -> bytes:
    """The name of a format, a line end, and an answer."""
    tool_format = FORMATS[rng.choice(sorted(FORMATS))]
    call = tool_format.head + "f" + tool_format.middle + ARGUMENTS + tool_format.tail
    answer = tool_format.opening + tool_format.begin + call + tool_format.between + call + tool_format.end
    text = mutated_text(rng.choice(("", "so: ")) + answer, rng, WORDS)
    return f"{tool_format.name}\n".encode() + text.encode("utf-8", "replace")


def run(data: bytes) -> None:
    said, _, content = data.partition(b"\n")
    tool_format = FORMATS.get(said.decode(errors="replace"))
    text = content.decode("utf-8", "replace")[:MAX_CHARS]
    if tool_format is None:
        return
    whole, stops = read_calls(tool_format, [text]), _stops(text)
    stopped = _stopped(stops, [text])
    for place in range(1, len(text)):
        parts = [text[:place], text[place:]]
        if read_calls(tool_format, parts) != whole:
            raise Fault(
                f"other calls where the text is cut at {place}: {read_calls(tool_format, parts)}, not {whole}"
            )
        if _stopped(stops, parts) != stopped:
            raise Fault(f"stops elsewhere where the text is cut at {place}")
    if read_calls(tool_format, list(text)) != whole:
        raise Fault("other calls in single characters")


def _stops(text: str) -> tuple[str, ...]:
    """Take stop strings out of the text itself, where they overlap."""
    third = len(text) // 3
    return tuple(filter(None, (text[third : third + 4], text[third + 2 : third + 9], text[-3:], "aa")))


def _stopped(stops: tuple[str, ...], parts: list[str]) -> tuple[str, str | None]:
    try:
        matcher = StopMatcher(stops)
    except InvalidRequest:
        return "", None
    shown, matched = "", None
    for part in parts:
        more, matched = matcher.push(part)
        shown += more
    more, at_end = matcher.finish()
    return shown + more, matched or at_end


TARGET = Target("text_stream", make, in_memory(run), tries=24)
