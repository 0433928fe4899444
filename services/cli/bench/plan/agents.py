"""Recorded sessions of coding agents in the form that AgentX replays (the Weka trace of kv-cache-tester).

A file is one session, `{"id", "block_size", "hash_id_scope", "requests": [...]}`, or one a line. A request
has `t` (seconds since the session began), `in` and `out` tokens, and maybe `hash_ids` (equal ids, equal
blocks), `model` and `api_time`, its length in seconds; one of type "subagent" has `requests` of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.plan.agent_threads import (
    RecordedAgent,
    RecordedCall,
    ReplayPace,
    agent_thread,
    thread_turns,
)
from services.cli.bench.plan.dialogue import Dialogue
from services.cli.bench.plan.input_lines import input_lines
from services.cli.bench.plan.prompt_writer import PromptWriter
from shared.errors import InvalidRequest

MAX_SESSION_BYTES = 64 << 20
"""The longest file of one session; one of many sessions has them a line each."""
MAX_SESSION_FILES = 10_000
"""The files of a folder that are read, in the order of their names; what is beyond is left out."""
MAX_SESSION_CALLS = 20_000
"""The calls of one session, helpers' included; a longer one is refused."""
MAX_HELPER_DEPTH = 16
"""The depth of helpers of helpers; a deeper session is refused."""


@dataclass(frozen=True, slots=True)
class AgentSource:
    """`path`: a file, or a folder of them."""

    path: Path
    writer: PromptWriter
    pace: ReplayPace
    name: str = "agents"

    @property
    def has_times(self) -> bool:
        return False

    def dialogues(self) -> Generator[Dialogue]:
        """Yield a session each, those without a call left out. Raises InvalidRequest."""
        for where, text in self._sessions():
            session = _SessionReader(where).read(text)
            thread = agent_thread(session.agent)
            if thread is not None:
                blocks = _BlockWriter(self.writer, session.block_tokens, f"{self.name}/{session.scope}")
                turns, helpers = thread_turns(thread, blocks.prompt, self.writer.answer_tokens, self.pace)
                yield Dialogue(turns, self.name, helpers=helpers)

    def _sessions(self) -> Iterator[tuple[str, str]]:
        """Yield each with the place that its faults are told with."""
        if self.path.is_dir():
            files = sorted(each for each in self.path.iterdir() if each.suffix in (".json", ".jsonl"))
            if not files:
                raise InvalidRequest(f"{self.path} has no .json or .jsonl file: name the folder of sessions")
            for file in files[:MAX_SESSION_FILES]:
                yield from _sessions_of(file)
        else:
            yield from _sessions_of(self.path)


def _sessions_of(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".jsonl":
        for number, line in input_lines(path):
            yield f"{path}, line {number}", line
        return
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SESSION_BYTES + 1)
        if len(content) > MAX_SESSION_BYTES:
            raise InvalidRequest(
                f"{path} is longer than {MAX_SESSION_BYTES} bytes; "
                "write many sessions in a .jsonl file, one a line"
            )
        yield str(path), content.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); name another file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 ({error.reason}); convert the file") from error


@dataclass(frozen=True, slots=True)
class _RecordedSession:
    """`scope`: equal ids are equal blocks within it."""

    agent: RecordedAgent
    block_tokens: int
    scope: str


class _SessionReader:
    """Reads one session, whose faults are told with `where` it stands."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls = 0
        self._block_tokens = 1

    def read(self, text: str) -> _RecordedSession:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"is no JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("requests"), list):
            raise self._wrong("is no session: an object with a list of requests")
        scope = row.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise self._wrong(f"has hash_id_scope {str(scope)[:40]!r}; it is local or global")
        block_tokens = self._whole(row, "block_size", 1)
        name = "all" if scope == "global" else str(row.get("id") or self._where)
        self._block_tokens = block_tokens
        return _RecordedSession(self._agent(row["requests"], 0.0, joined=True, depth=0), block_tokens, name)

    def _agent(self, rows: list[Any], began_s: float, *, joined: bool, depth: int) -> RecordedAgent:
        if depth > MAX_HELPER_DEPTH:
            raise self._wrong(f"has subagents more than {MAX_HELPER_DEPTH} deep")
        self._calls += len(rows)
        if self._calls > MAX_SESSION_CALLS:
            raise self._wrong(f"has more than {MAX_SESSION_CALLS} requests; split the session")
        if not all(isinstance(row, dict) for row in rows):
            raise self._wrong("has requests that are no objects")
        times = [self._seconds(row, "t") for row in rows]
        if times and min(times) < began_s:  # a subagent whose times count from its own beginning
            times = [began_s + time for time in times]
        calls: list[RecordedCall] = []
        helpers: list[RecordedAgent] = []
        for row, at_s in zip(rows, times, strict=True):
            if row.get("type") != "subagent":
                calls.append(self._call(row, at_s))
            elif not isinstance(row.get("requests"), list):
                raise self._wrong("has a subagent without a list of requests")
            else:
                waits = row.get("status") != "async_launched"
                helpers.append(self._agent(row["requests"], at_s, joined=waits, depth=depth + 1))
        return RecordedAgent(calls, helpers, joined)

    def _call(self, row: dict[str, Any], at_s: float) -> RecordedCall:
        ids = row.get("hash_ids", [])
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise self._wrong(f"has hash_ids {str(ids)[:40]}; it is a list of whole numbers")
        took_s = self._seconds(row, "api_time") if row.get("api_time") is not None else 0.0
        input_tokens = self._whole(row, "in", 1)
        return RecordedCall(
            at_s=at_s,
            ended_s=at_s + took_s,
            model=str(row.get("model", "")),
            input_tokens=input_tokens,
            output_tokens=self._whole(row, "out", 0),
            hash_ids=tuple(ids),
            whole_blocks=min(len(ids), input_tokens // self._block_tokens),
        )

    def _seconds(self, row: dict[str, Any], field: str) -> float:
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._wrong(f"has a request with {field} {str(value)[:40]!r}; it is seconds of 0 or more")
        return float(value)

    def _whole(self, row: dict[str, Any], field: str, least: int) -> int:
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(f"has {field} {str(value)[:40]!r}; it is a whole number of {least} or more")
        return value

    def _wrong(self, fault: str) -> InvalidRequest:
        return InvalidRequest(f"{self._where}: it {fault}")


class _BlockWriter:
    """Writes prompts of blocks; equal ids of a scope are equal text. Keeps what it wrote for one session."""

    def __init__(self, writer: PromptWriter, block_tokens: int, scope: str) -> None:
        self._writer = writer
        self._block_tokens = block_tokens
        self._scope = scope
        self._blocks: dict[int, str] = {}

    def prompt(self, call: RecordedCall) -> str:
        """Return a text of about the call's tokens: its whole blocks, and behind them what fills no block."""
        whole = call.hash_ids[: call.input_tokens // self._block_tokens]
        rest = call.input_tokens - len(whole) * self._block_tokens
        texts = [self._block(each) for each in whole]
        if rest or not texts:
            last = call.hash_ids[len(whole) : len(whole) + 1] or (f"{call.at_s}/{call.model}",)
            texts.append(self._writer.text(rest, f"{self._scope}/{last[0]}/{rest}"))
        return "".join(texts)

    def _block(self, each: int) -> str:
        text = self._blocks.get(each)
        if text is None:
            text = self._blocks[each] = self._writer.block(self._block_tokens, f"{self._scope}/{each}")
        return text
