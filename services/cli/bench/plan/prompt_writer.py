"""Write texts of so many tokens, which are told by keys: the same key and seed, the same text."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from services.cli.bench.plan.prose import PARAGRAPHS, Prose

MAX_PROMPT_TOKENS = 4_000_000
"""The longest prompt that is made; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """`chars_per_token`: as the server counts them in text of this kind. `length_scale`: of prompts and of
    answers, which a trace may have too long for a model. `text_seed`: of texts alone; lengths and order are
    those of `seed`."""

    prose: Prose
    chars_per_token: float
    length_scale: float = 1.0
    seed: int = 0
    text_seed: int = 0

    def text(self, tokens: float, key: str) -> str:
        """Return about so many tokens of text, of one word at least."""
        scaled = min(tokens * self.length_scale, MAX_PROMPT_TOKENS)
        return self.prose.write(self.text_random(key), round(scaled * self.chars_per_token))

    def block(self, tokens: float, key: str) -> str:
        """Return a text that others stand behind: it ends a paragraph, so that no token is of two."""
        return self.text(tokens, key) + PARAGRAPHS

    def answer_tokens(self, tokens: float) -> int:
        return max(1, round(tokens * self.length_scale))

    def tokens_of(self, text: str) -> int:
        return max(1, round(len(text) / self.chars_per_token))

    def text_random(self, key: str) -> Random:
        """Return chances for what is in texts, as those of other texts are other ones."""
        return Random(f"{self.seed}/{self.text_seed}/{key}")  # noqa: S311 - the same

    def random(self, key: str) -> Random:
        return Random(f"{self.seed}/{key}")  # noqa: S311 - it has to be repeatable, not secret
