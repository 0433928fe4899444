"""The trace of Mooncake (FAST'25): equal hash ids are equal text, so that prefixes are shared as they were.

A line is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}`; an id
names a block of 512 tokens and all before it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn
from services.cli.bench.plan.input_lines import input_lines, json_object, whole_number, wrong_line
from services.cli.bench.plan.prompt_writer import PromptWriter

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class MooncakeSource:
    """`speed` 2 replays it in half the time."""

    path: Path
    writer: PromptWriter
    speed: float = 1.0
    name: str = "mooncake"

    @property
    def has_times(self) -> bool:
        return True

    def dialogues(self) -> Generator[Dialogue]:
        """Yield in the order of the lines, whose times never go back. Raises InvalidRequest."""
        latest_ms = 0
        for number, line in input_lines(self.path):
            row = json_object(self.path, number, line)
            at_ms = whole_number(self.path, number, row, "timestamp")
            if at_ms < latest_ms:
                raise wrong_line(
                    self.path, number, f"has timestamp {at_ms} behind {latest_ms}; sort the file"
                )
            latest_ms = at_ms
            input_tokens = whole_number(self.path, number, row, "input_length", 1)
            output_tokens = whole_number(self.path, number, row, "output_length")
            ids = self._ids(number, row, input_tokens)
            turn = DialogueTurn(self._text(ids, input_tokens), self.writer.answer_tokens(output_tokens))
            yield Dialogue((turn,), self.name, at_s=at_ms / 1e3 / self.speed)

    def _ids(self, number: int, row: dict[str, Any], input_tokens: int) -> list[int]:
        ids = row.get("hash_ids")
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise wrong_line(
                self.path, number, f"has hash_ids {str(ids)[:40]}; it is a list of whole numbers"
            )
        wanted = -(-input_tokens // BLOCK_TOKENS)
        if len(ids) != wanted:
            raise wrong_line(
                self.path,
                number,
                f"has {len(ids)} hash_ids for input_length {input_tokens}, which is {wanted}",
            )
        return ids

    def _text(self, ids: list[int], input_tokens: int) -> str:
        *whole, last = ids
        rest = input_tokens - BLOCK_TOKENS * len(whole)
        blocks = [self.writer.block(BLOCK_TOKENS, f"{self.name}/{each}") for each in whole]
        return "".join((*blocks, self.writer.text(rest, f"{self.name}/{last}")))
