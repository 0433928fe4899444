"""A child between fork and exec."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from services.launcher.processes import child
from services.launcher.processes.child import spawn
from tests.support.wait import until

TIMEOUT_S = 60
SAY_MASK = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)"


def interrupted_before_exec(_parent_pid: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.SIGINT)


async def test_ctrl_c_that_reaches_a_child_before_its_program_is_not_ours_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "die_with", interrupted_before_exec)
    heard: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, heard.append, signal.SIGINT)
    try:
        children = await asyncio.gather(
            *(spawn([sys.executable, "-c", SAY_MASK], os.environ) for _ in range(3))
        )
        async with asyncio.timeout(TIMEOUT_S):
            said = [await each.output.read() for each in children]
            codes = [await each.process.wait() for each in children]
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: heard)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for each in children:
            each.pipe.close()
    assert codes == [0, 0, 0]
    assert said == [b"set()\n"] * 3  # they hear signals again
    assert heard == [signal.SIGINT]  # ours, which came later
