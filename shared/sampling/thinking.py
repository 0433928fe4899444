"""The rule that holds a model's thinking within its budget, and a grammar behind it. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.errors import InvalidRequest

ANY_LENGTH = -1
"""The budget of thinking that may go on for as long as the answer may."""
MAX_CLOSE_TOKENS = 64
"""The most tokens that close a thinking."""
OPENING_TOKENS = 4
"""The first tokens of an output, in which thinking is opened: white space may stand before it."""


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """The tokens that open and close the thinking of a sequence, and its budget.

    Where the prompt has not `begun` it, it begins when `opening_id` is one of the first tokens of the output
    (-1: never), and is over with `closing_id`. After `max_tokens` of thinking (ANY_LENGTH: never) `close_ids`
    are drawn, whatever the model would draw; `closing_id` is one of them. A grammar holds from where the
    thinking and what is left of `close_ids` are over, or from the first token where there is none.
    """

    closing_id: int
    close_ids: tuple[int, ...]
    opening_id: int = -1
    begun: bool = False
    max_tokens: int = ANY_LENGTH

    def validate(self, name: str, vocab_size: int | None = None) -> None:
        """Raise InvalidRequest that names what is wrong; ids are checked against `vocab_size`."""
        if not 1 <= len(self.close_ids) <= MAX_CLOSE_TOKENS or self.closing_id not in self.close_ids:
            raise InvalidRequest(
                f"{name} closes with {len(self.close_ids)} tokens: send 1 to {MAX_CLOSE_TOKENS}, "
                "the closing one among them"
            )
        if self.max_tokens < ANY_LENGTH:
            raise InvalidRequest(f"{name} has a budget of {self.max_tokens} tokens: send at least 0")
        if vocab_size is not None and not all(0 <= each < vocab_size for each in self._ids):
            raise InvalidRequest(f"{name} names a token outside the vocabulary of {vocab_size}")

    @property
    def _ids(self) -> Iterator[int]:
        yield from self.close_ids
        yield self.closing_id
        if self.opening_id >= 0:
            yield self.opening_id
