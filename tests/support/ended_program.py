"""Wait for a program that a test has started."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from typing import NamedTuple

HANG_S = 240.0
"""A program that takes longer hangs, also where every core has many others to serve."""


class EndedProgram(NamedTuple):
    """`code`: what it exited with; `out`, `err`: what it said, where that was piped."""

    code: int
    out: str
    err: str


async def ended_program(
    process: Process, stdin: bytes | None = None, *, limit_s: float = HANG_S
) -> EndedProgram:
    """Return how it ends. Raises TimeoutError where that takes longer than `limit_s`: it is killed then, so
    that it does not run on beside the tests that follow.
    """
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return EndedProgram(process.returncode, (out or b"").decode(), (err or b"").decode())
