"""The formats in which models write what they think before they answer, each known by the chat templates that
teach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """The marks around what a model thinks, which stands between `opening` and `closing`.

    The answer that follows begins behind one of `answer_openings`, where the model writes one, and ends
    before `answer_closing` ("": with the text). `close` is written where a thinking has to end, up to where
    the answer begins; `opening_word` ("": the opening) shows among the first tokens that it has begun.
    `markers` are those parts that are special tokens in the vocabularies of some models.
    """

    name: str
    opening: str
    closing: str
    answer_openings: tuple[str, ...] = ()
    answer_closing: str = ""
    close: str = ""
    opening_word: str = ""
    markers: tuple[str, ...] = ()


THINK = ThinkingFormat(
    name="think",
    opening="<think>",
    closing="</think>",
    close="\n</think>\n\n",
    markers=("<think>", "</think>"),
)
"""The format of Qwen3, DeepSeek R1, SmolLM3, GLM and most others."""
RESPONSE = ThinkingFormat(
    name="response",
    opening="<think>",
    closing="</think>",
    close="\n</think>\n\n",
    answer_openings=("<response>",),
    answer_closing="</response>",
    markers=("<think>", "</think>", "<response>", "</response>"),
)
"""The format of Granite from 3.3 on."""
GRANITE = ThinkingFormat(
    name="granite",
    opening="Here is my thought process:",
    closing="Here is my response:",
)
"""The format of Granite 3.2."""
MAGISTRAL = ThinkingFormat(
    name="magistral",
    opening="[THINK]",
    closing="[/THINK]",
    close="[/THINK]",
    markers=("[THINK]", "[/THINK]"),
)
COHERE = ThinkingFormat(
    name="cohere",
    opening="<|START_THINKING|>",
    closing="<|END_THINKING|>",
    close="<|END_THINKING|><|START_RESPONSE|>",
    answer_openings=("<|START_RESPONSE|>",),
    answer_closing="<|END_RESPONSE|>",
    markers=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
HARMONY = ThinkingFormat(
    name="harmony",
    opening="<|channel|>analysis<|message|>",
    closing="<|end|>",
    close="<|end|><|start|>assistant<|channel|>final<|message|>",
    opening_word="analysis",
    answer_openings=("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
    markers=("<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
)
"""The format of gpt-oss: one channel for what is thought, one for the answer."""
THINKING_FORMATS: Mapping[str, ThinkingFormat] = {
    each.name: each for each in (THINK, RESPONSE, GRANITE, MAGISTRAL, COHERE, HARMONY)
}

SWITCHES = ("enable_thinking", "thinking")
"""The names under which templates are told whether the model thinks: Qwen's and most others', Granite's and
DeepSeek's."""


def find_thinking(template: str) -> ThinkingFormat | None:
    """Return the format that a chat template teaches, None where it knows nothing of thinking."""
    if "<|channel|>" in template and "analysis" in template:
        return HARMONY
    if COHERE.opening in template:
        return COHERE
    if GRANITE.opening in template:
        return GRANITE
    if THINK.opening in template or THINK.closing in template:
        return RESPONSE if "<response>" in template else THINK
    return MAGISTRAL if MAGISTRAL.opening in template else None
