"""A drain that asks waits for a typed answer as long as it says, and no longer."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from services.cli.fleet.draining import ANSWER_TIMEOUT_S, _typed_line

TURNS = 20
"""Turns of the loop in which whatever is due happens."""


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_an_answer_counts_until_the_time_is_over_and_none_is_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the loop is moved: each wait is a minute from its end, and then beyond it."""
    loop, passed_s = asyncio.get_running_loop(), 0.0
    now_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s() + passed_s)
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stdin, os.fdopen(theirs, "w") as keyboard:
        monkeypatch.setattr(sys, "stdin", stdin)
        in_time = asyncio.create_task(_typed_line())
        await turns()
        passed_s = ANSWER_TIMEOUT_S - 60
        await turns()
        assert not in_time.done()
        keyboard.write("yes\n")
        keyboard.flush()
        assert await in_time == "yes\n"
        late = asyncio.create_task(_typed_line())
        await turns()
        passed_s += ANSWER_TIMEOUT_S
        assert await late == ""
