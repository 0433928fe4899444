"""Read how long a model may think, by the names that OpenAI's bodies and those of others have for it."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.request.thinking_use import EFFORTS, MAX_THINKING_DEADLINE_MS
from shared.sampling.parameters import MAX_OUTPUT_TOKENS, Bounds
from shared.text.thinking_formats import SWITCHES

THINKING = "thinking"
EFFORTS_BY_NAME = {word: effort for effort, word in EFFORTS.items()}
THINKING_TOKENS = Bounds(0, MAX_OUTPUT_TOKENS, integer=True)
THINKING_MS = Bounds(1, MAX_THINKING_DEADLINE_MS, integer=True)


def read_thinking(body: JsonFields, options: JsonFields) -> pb.Thinking | None:
    """Return what `penstock.thinking` says, and `reasoning_effort`, `reasoning.effort`,
    `thinking_token_budget` or `chat_template_kwargs` where it says nothing of that; None where nobody does.
    Raises WrongField."""
    given = options.object(THINKING)
    thinking = pb.Thinking()
    efforts = (
        _effort(given, "effort"),
        _effort(body, "reasoning_effort"),
        _effort(body.object("reasoning"), "effort"),
        _switched(body),
    )
    if (effort := next(filter(None, efforts), None)) is not None:
        thinking.effort = effort
    max_tokens = given.number("max_tokens", THINKING_TOKENS)
    if max_tokens is None:
        max_tokens = body.number("thinking_token_budget", THINKING_TOKENS)
    if max_tokens is not None:
        thinking.max_tokens = max_tokens
    deadline_ms = given.number("deadline_ms", THINKING_MS)
    if deadline_ms is not None:
        thinking.deadline_ms = deadline_ms
    return thinking if thinking != pb.Thinking() or max_tokens is not None else None


def _effort(fields: JsonFields, name: str) -> pb.ReasoningEffort | None:
    if fields.value(name) is None:
        return None
    return EFFORTS_BY_NAME[fields.choice(name, EFFORTS_BY_NAME)]


def _switched(body: JsonFields) -> pb.ReasoningEffort | None:
    """Return that there is to be no thinking, where a template's argument says so; others are left out."""
    arguments = body.object("chat_template_kwargs")
    off = [name for name in SWITCHES if not arguments.flag(name, default=True)]
    return pb.REASONING_EFFORT_NONE if off else None
