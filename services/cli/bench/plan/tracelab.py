"""TraceLab's sessions of coding agents (arXiv 2606.30560): a CSV with a line a round.

Columns are `session_id` (or `id`), `round_idx`, `prefix_len`, `input_len`, `output_len` and
`tool_wait_after_ms`; `arrival_time` in ms says when a session begins. A prompt keeps `prefix_len` tokens of
what its session said so far, answers included, and goes on with `input_len` new ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.plan.agent_threads import ReplayPace
from services.cli.bench.plan.dialogue import Dialogue, DialogueTurn
from services.cli.bench.plan.input_lines import input_lines, whole_number, wrong_line
from services.cli.bench.plan.prompt_writer import PromptWriter

COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
SHARED = "tracelab/shared"
"""The text of what a session finds cached before it said anything: others began alike."""


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A stretch of a session's context: the first `kept_tokens` of the text that `key` names."""

    key: str
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class TraceLabRound:
    round_index: int
    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    wait_after_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class TraceLabSource:
    path: Path
    writer: PromptWriter
    pace: ReplayPace
    name: str = "tracelab"

    @property
    def has_times(self) -> bool:
        return True

    def dialogues(self) -> Generator[Dialogue]:
        """Yield a session each, in the order in which they begin. Raises InvalidRequest."""
        sessions: dict[str, list[TraceLabRound]] = {}
        lines = input_lines(self.path)
        number, head = next(lines, (1, ""))
        columns = next(csv.reader([head]), [])
        if not set(COLUMNS) <= set(columns) or not {"session_id", "id"} & set(columns):
            raise wrong_line(
                self.path, number, f"is no head with the columns session_id, {', '.join(COLUMNS)}"
            )
        for number, line in lines:
            row = dict(zip(columns, next(csv.reader([line])), strict=False))
            rounds = sessions.setdefault(row.get("session_id") or row.get("id") or "", [])
            rounds.append(self._round(number, row))
            if len(rounds) > 1 and rounds[-2].round_index >= rounds[-1].round_index:
                raise wrong_line(
                    self.path,
                    number,
                    f"has round_idx {rounds[-1].round_index} behind {rounds[-2].round_index} "
                    "of the same session; sort the file",
                )
        for name, rounds in sorted(sessions.items(), key=lambda item: item[1][0].at_s):
            yield Dialogue(self._turns(name, rounds), self.name, at_s=rounds[0].at_s / self.pace.speed)

    def _round(self, number: int, row: dict[str, Any]) -> TraceLabRound:
        def whole(field: str, least: int = 0) -> int:
            text = row.get(field) or ""
            value = int(float(text)) if text.replace(".", "", 1).isdigit() and len(text) < 16 else text
            return whole_number(self.path, number, {field: value}, field, least)

        return TraceLabRound(
            whole("round_idx"),
            whole("prefix_len"),
            whole("input_len"),
            whole("output_len"),
            whole("tool_wait_after_ms") / 1e3 if row.get("tool_wait_after_ms") else 0.0,
            whole("arrival_time") / 1e3 if row.get("arrival_time") else 0.0,
        )

    def _turns(self, session: str, rounds: list[TraceLabRound]) -> tuple[DialogueTurn, ...]:
        turns = []
        said: tuple[SaidPart, ...] = ()
        pause_s = 0.0
        for each in rounds:
            key = f"{self.name}/{session}/{each.round_index}"
            before = _kept(said, each.prefix_tokens) if said else _part(SHARED, each.prefix_tokens)
            said = before + _part(f"{key}/in", each.input_tokens)
            turns.append(
                DialogueTurn(self._later(said), self.writer.answer_tokens(each.output_tokens), True, pause_s)
            )
            said += _part(f"{key}/out", each.output_tokens)
            pause_s = self.pace.pause_s(each.wait_after_s)
        return tuple(turns)

    def _later(self, said: tuple[SaidPart, ...]) -> Callable[[], str]:
        return lambda: "".join(map(self._text, said))

    def _text(self, part: SaidPart) -> str:
        text = self.writer.block(part.tokens, part.key)
        return (
            text if part.kept_tokens == part.tokens else text[: len(text) * part.kept_tokens // part.tokens]
        )


def _part(key: str, tokens: int) -> tuple[SaidPart, ...]:
    return (SaidPart(key, tokens, tokens),) if tokens else ()


def _kept(said: tuple[SaidPart, ...], tokens: int) -> tuple[SaidPart, ...]:
    """Return the first `tokens` of what was said; a prefix of more than that is all of it."""
    kept = []
    for part in said:
        if tokens <= 0:
            break
        kept.append(SaidPart(part.key, part.tokens, min(part.kept_tokens, tokens)))
        tokens -= part.kept_tokens
    return tuple(kept)
