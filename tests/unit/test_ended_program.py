"""A program that a test waits for: what it said, and that it does not outlive its time."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from tests.support.ended_program import EndedProgram, ended_program


async def test_what_it_said_and_how_it_ended_is_told() -> None:
    said = "import sys; print(input()); print('no', file=sys.stderr); sys.exit(3)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", said, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert await ended_program(process, b"yes\n") == EndedProgram(3, "yes\n", "no\n")


async def test_one_that_takes_too_long_is_killed() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", "import signal; signal.pause()", stdin=DEVNULL, stdout=PIPE
    )
    with pytest.raises(TimeoutError):
        await ended_program(process, limit_s=0.01)
    assert process.returncode == -9
