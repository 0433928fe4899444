"""Answer what a rule may ask of a request: each question once, and only where a rule asks it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.keys.key_gate import BYTES_PER_TOKEN
from services.gateway.request.request import Request
from services.gateway.virtual.question_language import language_of

PRIORITY_NAMES = {pb.PRIORITY_LOW: "low", pb.PRIORITY_NORMAL: "normal", pb.PRIORITY_HIGH: "high"}
FREE = "text"
"""The format of an answer that nothing holds."""
FORMAT_NAMES = {"ebnf": "grammar"}
"""The kinds of constraints that clients know by another name."""


class RuleFacts:
    """`left_ms`: until the deadline of the first token. `predict_ms(model)`: the time to the first token that
    is predicted of it, infinite where it has no worker. `hardness`: the classifier's estimate, None where
    there is none."""

    def __init__(
        self,
        request: Request,
        left_ms: float,
        predict_ms: Callable[[str], float],
        hardness: float | None = None,
    ) -> None:
        self.request = request
        self.left_ms = left_ms
        self.predict_ms = predict_ms
        self.hardness = hardness

    @cached_property
    def chars(self) -> int:
        """The characters of a text, or of the messages of a chat; 0 of token ids."""
        chat = self.request.chat
        return sum(len(turn.content) for turn in chat) if chat else len(self.request.text or "")

    @cached_property
    def tokens(self) -> int:
        """The tokens of a prompt of ids; else an estimate, by its bytes: each model has a tokenizer of its
        own, and none is known yet."""
        ids = self.request.token_ids
        return len(ids) if ids is not None else -(-self.request.prompt_bytes // BYTES_PER_TOKEN)

    @cached_property
    def language(self) -> str:
        return language_of(self.request.question)

    @property
    def priority(self) -> str:
        return PRIORITY_NAMES[self.request.priority]  # type: ignore[index]  # validated

    @property
    def answer_format(self) -> str:
        constraint = self.request.sampling.grammar
        return FREE if constraint is None else FORMAT_NAMES.get(constraint.kind, constraint.kind)

    @property
    def has_tools(self) -> bool:
        return bool(self.request.tool_use.tools)
