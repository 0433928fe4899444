"""Files of conversations and of prompts: a JSON object a line, or a line of text that is a prompt.

An object has one of `conversations` (ShareGPT: `from` and `value`), `messages` (OpenAI: `role` and
`content`), `turns` (texts of a user), `prompt`, `question` or `text`. Recorded answers say how long ours are.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn
from services.cli.bench.plan.input_lines import input_lines, json_object, wrong_line
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.plan.prompt_writer import PromptWriter

LISTS = {"conversations": ("from", "value"), "messages": ("role", "content")}
TEXTS = ("prompt", "question", "text")
USERS = ("human", "user")
SYSTEMS = ("system", "developer")
MAX_TURNS = 256
"""The turns of one conversation that are asked; what is beyond is left out."""


@dataclass(frozen=True, slots=True)
class ConversationSource:
    """`output_tokens`: of every answer; None takes the length of the recorded one, else `default_tokens`."""

    path: Path
    writer: PromptWriter
    output_tokens: TokenLengths | None = None
    default_tokens: int = 128
    name: str = "prompts"

    @property
    def has_times(self) -> bool:
        return False

    def dialogues(self) -> Generator[Dialogue]:
        """Yield those in which a user says something. Raises InvalidRequest."""
        for number, line in input_lines(self.path):
            said = self._said(number, line)
            system = "\n\n".join(text for role, text in said if role in SYSTEMS)
            turns = self._turns(number, said)
            if turns:
                yield Dialogue(turns, self.name, system)

    def _turns(self, number: int, said: list[tuple[str, str]]) -> tuple[DialogueTurn, ...]:
        """Return what users say, each with the length of the answer that was recorded behind it."""
        turns: list[DialogueTurn] = []
        random = self.writer.random(f"{self.name}/{number}")
        spoken = [(role, text) for role, text in said if role not in SYSTEMS]
        for index, (role, text) in enumerate(spoken):
            if role in USERS and len(turns) < MAX_TURNS:
                behind = spoken[index + 1] if index + 1 < len(spoken) else ("", "")
                recorded = 0 if behind[0] in USERS else len(behind[1])
                if self.output_tokens is not None:
                    tokens = self.output_tokens.draw(random)
                else:
                    tokens = self.writer.tokens_of(behind[1]) if recorded else self.default_tokens
                turns.append(DialogueTurn(text, self.writer.answer_tokens(tokens)))
        return tuple(turns)

    def _said(self, number: int, line: str) -> list[tuple[str, str]]:
        """Return who says what in a line."""
        if not line.startswith("{"):
            return [("user", line)]
        row = json_object(self.path, number, line)
        for field, (role, text) in LISTS.items():
            if field in row:
                return [self._message(number, field, each, role, text) for each in _listed(row[field])]
        if "turns" in row:
            return [("user", self._text(number, "turns", each)) for each in _listed(row["turns"])]
        for field in TEXTS:
            if field in row:
                return [("user", self._text(number, field, row[field]))]
        names = ", ".join((*LISTS, "turns", *TEXTS))
        raise wrong_line(self.path, number, f"has none of {names}: name one of its fields so")

    def _message(self, number: int, field: str, each: Any, role: str, text: str) -> tuple[str, str]:
        if not isinstance(each, dict) or role not in each or text not in each:
            raise wrong_line(self.path, number, f"has {field} that are not a list of {role} and {text}")
        return str(each[role]), self._text(number, field, each[text])

    def _text(self, number: int, field: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise wrong_line(
                self.path, number, f"has {field} {str(value)[:40]!r}; it is a text that is not empty"
            )
        return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
