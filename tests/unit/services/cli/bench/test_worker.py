"""A load by several real processes: each runs its part, and one that breaks is said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.load_parts import LoadPart, run_parts
from shared.errors import InternalError
from tests.support.scripted_server import scripted_server, told_story


def parts(count: int, *argv: str) -> list[LoadPart]:
    return [LoadPart(argv, index, count, time.monotonic(), "scripted", 4.0) for index in range(count)]


async def test_parts_of_a_load_are_the_whole_of_it() -> None:
    told: list[CallRecord] = []
    async with scripted_server(lambda _: told_story(2, 0.0, 0.0)) as server:
        argv = ("--url", server.url, "--concurrency", "3", "--requests", "7", "--duration", "60")
        result = await run_parts(parts(2, *argv), told.append)
    assert sorted(record.number for record in result.records) == list(range(7))
    assert len(server.asked) == len(told) == 7
    assert all(record.finished and record.facts.completion_tokens == 2 for record in told)
    assert result.generator.cpu_share > 0


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
