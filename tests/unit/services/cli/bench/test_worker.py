"""A load by several real processes: each runs its part, and one that breaks is said."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load_parts import MAX_RECORD_BYTES, LoadPart, read_part, run_parts
from services.cli.bench.run.loop_watch import TICK_S
from shared.errors import InternalError
from tests.support.scripted_server import Asked, Scripted, scripted_server, told_story
from tests.support.wait import until
from tests.unit.services.cli.bench.records import call_record


def parts(count: int, *argv: str) -> list[LoadPart]:
    return [LoadPart(argv, index, count, time.monotonic(), "scripted", 4.0) for index in range(count)]


async def test_parts_of_a_load_are_the_whole_of_it() -> None:
    told: list[CallRecord] = []
    async with scripted_server(lambda _: told_story(2, 2 * TICK_S, 0.0)) as server:
        argv = ("--url", server.url, "--concurrency", "3", "--requests", "7", "--duration", "60")
        result = await run_parts(parts(2, *argv), told.append)
    assert sorted(record.number for record in result.records) == list(range(7))
    assert len(server.asked) == len(told) == 7
    assert all(record.finished and record.facts.completion_tokens == 2 for record in told)
    assert result.generator.cpu_share > 0


async def test_parts_that_are_cut_tell_what_has_ended_and_how_many_calls_had_not() -> None:
    story, endless = told_story(2, 2 * TICK_S, 0.0), told_story(2, 0.0, 3600.0)
    asked: list[Asked] = []

    def answer(one: Asked) -> Scripted:
        asked.append(one)
        return story if len(asked) <= 5 else endless

    cut = asyncio.Event()
    async with scripted_server(answer) as server:
        argv = ("--url", server.url, "--concurrency", "3", "--duration", "3600")
        running = asyncio.create_task(run_parts(parts(2, *argv), lambda _: None, cut))
        await until(lambda: len(asked) == 8)  # each of three clients waits for one that does not end
        cut.set()
        result = await running
    assert len(result.records) == 5
    assert result.cut_calls == 3
    assert result.generator.cpu_share > 0


async def test_parts_that_are_cut_before_they_begin_have_nothing() -> None:
    cut = asyncio.Event()
    cut.set()
    (part,) = parts(1, "--url", "http://127.0.0.1:9", "--duration", "3600")
    result = await run_parts([replace(part, start_s=part.start_s + 3600)], lambda _: None, cut)
    assert (result.records, result.cut_calls) == ([], 0)


def told_call(length: int) -> bytes:
    """A call as a process tells it, in a line of so many bytes."""
    row = {**call_record().as_json(), "told": ""}
    row["told"] = "x" * (length - len(json.dumps(row)))
    return json.dumps(row).encode() + b"\n"


async def test_the_longest_call_is_read_and_one_byte_more_is_refused() -> None:
    for length in (MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1):
        told = asyncio.StreamReader(MAX_RECORD_BYTES)
        calls: list[CallRecord] = []
        told.feed_data(told_call(length))
        told.feed_eof()
        if length == MAX_RECORD_BYTES:
            assert await read_part(told, calls.append) is None  # its last line is missing
            assert len(calls) == 1
        else:
            with pytest.raises(InternalError, match="longer than 67108864 bytes: ask for shorter answers"):
                await read_part(told, calls.append)


async def test_a_part_says_which_line_it_cannot_use(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chats.jsonl").write_text('{"other": 1}\n')
    argv = ("--url", "http://127.0.0.1:9", "--source", f"prompts:{tmp_path / 'chats.jsonl'}")
    with pytest.raises(InternalError, match="part 0 of the load ended with code 1; see above"):
        await run_parts(parts(1, *argv), lambda _: None)
    said = capfd.readouterr().err
    assert "line 1: it has none of conversations" in said
    assert "Traceback" not in said


async def test_a_part_that_breaks_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InternalError, match="part 0 of the load ended with code 2; see above"):
        await run_parts(parts(1, "--nonsense"), lambda _: None)
    assert "--nonsense" in capfd.readouterr().err
