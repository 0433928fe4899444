"""Azure's traces of LLM inference: a CSV with TIMESTAMP, ContextTokens and GeneratedTokens."""

from __future__ import annotations

import csv
import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn
from services.cli.bench.plan.input_lines import input_lines, whole_number, wrong_line
from services.cli.bench.plan.prompt_writer import PromptWriter

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BEYOND_MICROSECONDS = re.compile(r"(\.\d{6})\d+")
"""The traces have seven digits of a second, and Python six."""


@dataclass(frozen=True, slots=True)
class AzureSource:
    path: Path
    writer: PromptWriter
    speed: float = 1.0
    name: str = "azure"

    @property
    def has_times(self) -> bool:
        return True

    def dialogues(self) -> Generator[Dialogue]:
        """Yield in the order of the lines, counted from the time of the first. Raises InvalidRequest."""
        lines = input_lines(self.path)
        number, head = next(lines, (1, ""))
        columns = next(csv.reader([head]), [])
        if not set(COLUMNS) <= set(columns):
            raise wrong_line(self.path, number, f"is no head with the columns {', '.join(COLUMNS)}")
        began: datetime | None = None
        latest_s = 0.0
        for number, line in lines:
            row = dict(zip(columns, next(csv.reader([line])), strict=False))
            at = self._time(number, row.get("TIMESTAMP", ""))
            began = began or at
            at_s = (at - began).total_seconds()
            if at_s < latest_s:
                raise wrong_line(
                    self.path, number, f"has TIMESTAMP {at} behind the one before; sort the file"
                )
            latest_s = at_s
            input_tokens = self._tokens(number, row, "ContextTokens", 1)
            answer = self.writer.answer_tokens(self._tokens(number, row, "GeneratedTokens", 0))
            turn = DialogueTurn(self.writer.text(input_tokens, f"{self.name}/{number}"), answer)
            yield Dialogue((turn,), self.name, at_s=at_s / self.speed)

    def _time(self, number: int, text: str) -> datetime:
        try:
            at = datetime.fromisoformat(BEYOND_MICROSECONDS.sub(r"\1", text))
        except ValueError as error:
            raise wrong_line(self.path, number, f"has TIMESTAMP {text[:40]!r}, which is no time") from error
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def _tokens(self, number: int, row: dict[str, Any], field: str, least: int) -> int:
        text = row.get(field, "")
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
        return whole_number(self.path, number, {field: value}, field, least)
