"""Dialogues of one turn each, no two of the same text, of lengths that are drawn."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count

from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.plan.prompt_writer import PromptWriter


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """`shared_tokens`: so many tokens at the beginning are those of all prompts."""

    writer: PromptWriter
    input_tokens: TokenLengths
    output_tokens: TokenLengths
    shared_tokens: int = 0
    name: str = "synthetic"

    @property
    def has_times(self) -> bool:
        return False

    def dialogues(self) -> Generator[Dialogue]:
        shared = self.writer.block(self.shared_tokens, f"{self.name}/shared") if self.shared_tokens else ""
        for index in count():
            key = f"{self.name}/{index}"
            random = self.writer.random(f"{key}/lengths")
            own = max(1, self.input_tokens.draw(random) - self.shared_tokens)
            answer = self.writer.answer_tokens(self.output_tokens.draw(random))
            yield Dialogue((DialogueTurn(shared + self.writer.text(own, key), answer),), self.name)
