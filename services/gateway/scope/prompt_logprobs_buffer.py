"""The log-probabilities of a prompt that a client is told: whole, in order, before its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.scope.text_row import TextRow
from shared.errors import InvalidRequest
from shared.sampling.parameters import SamplingParams, TokenLogprob

MAX_PROMPT_LOGPROBS = 1 << 19
"""The most log-probabilities of one prompt: its tokens times one more than how many of the likeliest are
wanted beside each."""
MAX_HELD_ROWS = 256
"""Rows of text that wait for what the bus delivers late. One more is dropped, and its gap found later."""


def check_prompt_logprobs(sampling: SamplingParams, prompt_tokens: int) -> None:
    """Raises InvalidRequest when they would be more than a gateway keeps."""
    most = MAX_PROMPT_LOGPROBS // (sampling.prompt_logprobs + 1)
    if prompt_tokens > most:
        raise InvalidRequest(
            f"sampling.prompt_logprobs is {sampling.prompt_logprobs} for a prompt of {prompt_tokens} tokens: "
            f"send at most {most}, or ask for less beside each"
        )


@dataclass(slots=True)
class PromptLogprobsBuffer:
    """`next_position` is that of the next prompt token to be told; those of a prompt that nobody wants to be
    told of are told already."""

    prompt_tokens: int = 0
    next_position: int = 0
    _held: list[tuple[TextRow, str]] = field(default_factory=list)

    @classmethod
    def wanted(cls, prompt_tokens: int) -> PromptLogprobsBuffer:
        """Nothing comes before the first token, so that there is nothing to be told of it."""
        return cls(prompt_tokens, 1)

    @property
    def complete(self) -> bool:
        return self.next_position >= self.prompt_tokens

    def take(self, position: int, logprobs: Sequence[TokenLogprob]) -> Sequence[TokenLogprob] | None:
        """Return the new ones: () when a route repeats an earlier one, None when some before are missing."""
        if position > self.next_position:
            return None
        fresh = logprobs[self.next_position - position :]
        self.next_position += len(fresh)
        return fresh

    def hold(self, row: TextRow, sender: str) -> bool:
        """Keep a row that came too early; False when there are too many."""
        if len(self._held) >= MAX_HELD_ROWS:
            return False
        self._held.append((row, sender))
        return True

    def release(self) -> Sequence[tuple[TextRow, str]]:
        """The rows that have waited, in order."""
        held, self._held = self._held, []
        return held
