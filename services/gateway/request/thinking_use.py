"""The way in which a client wants its model to think before it answers, and how long it may. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.messages import PromptThinking
from shared.sampling.parameters import MAX_OUTPUT_TOKENS
from shared.sampling.thinking import ANY_LENGTH, ThinkingRule

EFFORTS: Mapping[pb.ReasoningEffort, str] = {
    pb.REASONING_EFFORT_NONE: "none",
    pb.REASONING_EFFORT_MINIMAL: "minimal",
    pb.REASONING_EFFORT_LOW: "low",
    pb.REASONING_EFFORT_MEDIUM: "medium",
    pb.REASONING_EFFORT_HIGH: "high",
}
EFFORT_SHARES: Mapping[str, float] = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8}
"""The share of `max_tokens` that an effort leaves to the thinking: what is left is for the answer."""
MAX_THINKING_DEADLINE_MS = 24 * 3600 * 1000
"""The longest deadline of a thinking."""


@dataclass(frozen=True, slots=True)
class ThinkingUse:
    """`effort`: a word of EFFORT_SHARES, "" for what the model does by itself. The thinking is closed after
    `max_tokens` and `deadline_ms` after the arrival of the request; None leaves it open."""

    effort: str = ""
    max_tokens: int | None = None
    deadline_ms: int | None = None

    def budget(self, max_tokens: int) -> int:
        """Return the most tokens of thinking in an answer of `max_tokens`, ANY_LENGTH where it is open."""
        if self.max_tokens is not None:
            return self.max_tokens
        return int(EFFORT_SHARES[self.effort] * max_tokens) if self.effort else ANY_LENGTH

    def rule(self, thinking: PromptThinking, max_tokens: int, *, holds_behind: bool) -> ThinkingRule | None:
        """Return what holds a model to it that thinks in that way; None where nothing has to.

        `holds_behind`: a grammar holds the answer. Raises InvalidRequest where the mark for the end of its
        thinking is none that can be held to.
        """
        budget = self.budget(max_tokens)
        is_open = budget == ANY_LENGTH and self.deadline_ms is None
        if not thinking.format or (is_open and not holds_behind):
            return None
        if thinking.closing_id < 0:
            self._check_unmarked(thinking, holds_behind=holds_behind)
            return None
        return ThinkingRule(
            thinking.closing_id, thinking.close_ids, thinking.opening_id, thinking.begun, budget
        )

    def _check_unmarked(self, thinking: PromptThinking, *, holds_behind: bool) -> None:
        several = "the mark that ends this model's thinking is several tokens"
        if self.max_tokens is not None or self.deadline_ms is not None:
            raise InvalidRequest(f"thinking cannot be closed in time: {several}; leave its limits out")
        if holds_behind and thinking.begun:
            raise InvalidRequest(
                f"the answer behind the thinking cannot be held to tools or a constraint: {several}; "
                "send thinking.effort none, or neither"
            )


DEFAULT_THINKING = ThinkingUse()


def read_thinking_use(message: pb.GenerateRequest) -> ThinkingUse:
    """Raises InvalidRequest that names the field and what is allowed."""
    if not message.HasField("thinking"):
        return DEFAULT_THINKING
    asked = message.thinking
    if asked.effort not in pb.ReasoningEffort.values():
        raise InvalidRequest(
            f"thinking.effort is {int(asked.effort)}: send REASONING_EFFORT_NONE to REASONING_EFFORT_HIGH"
        )
    max_tokens = asked.max_tokens if asked.HasField("max_tokens") else None
    if max_tokens is not None and not 0 <= max_tokens <= MAX_OUTPUT_TOKENS:
        raise InvalidRequest(
            f"thinking.max_tokens is {max_tokens}: send an integer from 0 to {MAX_OUTPUT_TOKENS}"
        )
    deadline_ms = asked.deadline_ms if asked.HasField("deadline_ms") else None
    if deadline_ms is not None and not 1 <= deadline_ms <= MAX_THINKING_DEADLINE_MS:
        raise InvalidRequest(
            f"thinking.deadline_ms is {deadline_ms}: send milliseconds from 1 to {MAX_THINKING_DEADLINE_MS}"
        )
    return ThinkingUse(EFFORTS.get(asked.effort, ""), max_tokens, deadline_ms)
